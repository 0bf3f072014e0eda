"""Tests of programs as text."""

from absl.testing import absltest, parameterized

from dapo_jax.planning import hlo

_HEAD = 'HloModule jit_f, is_scheduled=true, num_partitions=4\n\n'


def _loop(name, *, limit, begin='0', direction='LT', step='1', body=''):
  """Returns the condition and body of a loop, and its call."""
  root = {None: '%bound'}.get(limit, '%limit')
  return (
    f"""
%{name}_condition (p: (s32[], s32[])) -> pred[] {{
  %p = (s32[]{{:T(128)}}, s32[]) parameter(0)
  %limit = s32[]{{:T(128)}} constant({limit or 0})
  %i = s32[]{{:T(128)}} get-tuple-element(%p), index=0
  %bound = s32[] get-tuple-element(%p), index=1
  ROOT %lt = pred[]{{:T(512)}} compare(%i, {root}), direction={direction}
}}

%{name}_body (p: (s32[], s32[])) -> (s32[], s32[]) {{
  %p = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %bound = s32[] get-tuple-element(%p), index=1
  %step = s32[] constant({step})
  %next = s32[] add(%i, %step)
  {body}
  ROOT %t = (s32[], s32[]) tuple(%next, %bound)
}}
""",
    f"""
  %{name}_begin = s32[] constant({begin})
  %{name}_tuple = (s32[], s32[]) tuple(%{name}_begin, %n)
  %{name} = (s32[], s32[]) while(%{name}_tuple), """
    f'condition=%{name}_condition, body=%{name}_body',
  )


def _entry(*calls):
  return (
    'ENTRY %main (n: s32[]) -> s32[] {\n  %n = s32[] parameter(0)'
    + ''.join(calls)
    + '\n  ROOT %out = s32[] copy(%n)\n}\n'
  )


class ParseTest(parameterized.TestCase):
  def test_instructions(self):
    text = (
      _HEAD
      + """%fused (x: f32[2]) -> f32[2] {
  %x = f32[2]{0:T(128)} parameter(0)
  ROOT %y = f32[2]{0:T(128)} negate(%x)
}, execution_thread="sparsecore"

ENTRY %main (a: f32[2], b: f32[]) -> (f32[2], f32[]) {
  %a = f32[2]{0:T(128)S(1)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  %k.1 = (f32[2]{0:T(128)}, f32[]) custom-call(%a, /*index=1*/%b), x={
"y":"{}"
}, metadata={op_name="f(g)"}, backend_config={"estimated_cycles":"7"}
  %c = f32[2]{0:T(128)} fusion(%a), kind=kLoop, calls=%fused
  ROOT %t = (f32[2]{0:T(128)}, f32[]{:T(128)}) tuple(%c, %b)
}
"""
    )
    found = hlo.parse(text)
    self.assertEqual(found.partitions, 4)
    self.assertEqual(found.runs, {'main': (1,), 'fused': (1,)})
    kernel, fusion, root = found.computations['main'][2:]
    self.assertEqual(kernel.shape, '(f32[2]{0:T(128)}, f32[])')
    self.assertEqual(kernel.op, 'custom-call')
    self.assertEqual(hlo.operands(kernel), ['a', 'b'])
    self.assertEqual(hlo.cycles(kernel), 7)
    self.assertIsNone(hlo.cycles(fusion))
    self.assertEqual(hlo.called(fusion), 'fused')
    self.assertTrue(root.is_root)
    self.assertFalse(fusion.is_root)

  # The trips of `for i in range(begin, limit, step)`, or to its end.
  @parameterized.parameters(
    (dict(limit='5'), 5),
    (dict(limit='5', direction='LE'), 6),
    (dict(limit='8', begin='2'), 6),
    (dict(limit='9', begin='2', step='3'), 3),
    (dict(limit='0', begin='4', step='-1', direction='GT'), 4),
    (dict(limit='0', begin='4', step='-1', direction='GE'), 5),
    (dict(limit='3', begin='3'), 0),
  )
  def test_static_loops_are_multiplied_out(self, loop, trips):
    code, call = _loop('a', **loop)
    found = hlo.parse(_HEAD + code + _entry(call))
    self.assertEqual(found.loops, 0)
    self.assertEqual(found.runs['a_body'], (trips,))

  def test_the_compilers_own_count_comes_first(self):
    code, call = _loop('a', limit=None)
    call += ', backend_config={"known_trip_count":{"n":"12"}}'
    found = hlo.parse(_HEAD + code + _entry(call))
    self.assertEqual(found.runs['a_body'], (12,))

  def test_dynamic_loops_are_numbered_in_order(self):
    inner, call_inner = _loop('inner', limit='3')
    a, call_a = _loop('a', limit=None, body='%n = s32[] copy(%i)' + call_inner)
    b, call_b = _loop('b', limit=None)
    found = hlo.parse(_HEAD + inner + a + b + _entry(call_a, call_b))
    self.assertEqual(found.loops, 2)
    self.assertEqual(found.runs['main'], (1, 0, 0))
    self.assertEqual(found.runs['a_body'], (0, 1, 0))
    self.assertEqual(found.runs['inner_body'], (0, 3, 0))
    self.assertEqual(found.runs['b_body'], (0, 0, 1))

  def test_a_dynamic_loop_inside_another_makes_one_trip(self):
    inner, call_inner = _loop('inner', limit=None)
    a, call_a = _loop('a', limit=None, body='%n = s32[] copy(%i)' + call_inner)
    found = hlo.parse(_HEAD + inner + a + _entry(call_a))
    self.assertEqual(found.loops, 1)
    self.assertEqual(found.runs['inner_body'], (0, 1))

  def test_a_condition_of_several_parts_is_dynamic(self):
    code, call = _loop('a', limit='5')
    code = code.replace(
      'ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT',
      '%lt = pred[] compare(%i, %limit), direction=LT\n'
      '  %more = pred[] compare(%bound, %limit), direction=GT\n'
      '  ROOT %both = pred[] and(%lt, %more)',
    )
    self.assertEqual(hlo.parse(_HEAD + code + _entry(call)).loops, 1)

  @parameterized.parameters(
    'branch_computations={%cheap, %dear}',
    'true_computation=%cheap, false_computation=%dear',
  )
  def test_of_branches_the_one_of_most_cycles_runs(self, branches):
    branch = """
%{name} (x: f32[2]) -> f32[2] {{
  %x = f32[2] parameter(0)
  {more}
  ROOT %y = f32[2] negate(%x), backend_config={{"estimated_cycles":"{n}"}}
}}
"""
    cheap = branch.format(name='cheap', n=10, more='%z = f32[2] negate(%x)')
    dear = branch.format(name='dear', n=11, more='')
    call = f'\n  %c = f32[2] conditional(%n, %n, %n), {branches}'
    found = hlo.parse(_HEAD + cheap + dear + _entry(call))
    self.assertEqual(found.runs, {'main': (1,), 'dear': (1,)})

  def test_what_combines_numbers_does_not_run(self):
    code = '\n%add (x: f32[]) -> f32[] {\n  ROOT %x = f32[] parameter(0)\n}\n'
    call = '\n  %r = f32[] reduce(%n, %n), dimensions={0}, to_apply=%add'
    self.assertEqual(
      hlo.parse(_HEAD + code + _entry(call)).runs, {'main': (1,)}
    )

  def test_what_is_started_runs_once(self):
    code = '\n%sum (x: f32[]) -> f32[] {\n  ROOT %x = f32[] parameter(0)\n}\n'
    call = (
      '\n  %s = ((f32[]), f32[], u32[]) async-start(%n), calls=%sum'
      '\n  %d = f32[] async-done(%s), calls=%sum'
    )
    found = hlo.parse(_HEAD + code + _entry(call))
    self.assertEqual(found.runs['sum'], (1,))


if __name__ == '__main__':
  absltest.main()
