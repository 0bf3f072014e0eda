"""Tests of the compiler's estimates."""

from absl.testing import absltest

from dapo_jax.planning import cycles, hlo

# One product inside a fusion inside another; a loop of three trips; kernels.
_TEXT = """HloModule jit_f, num_partitions=4

%inner (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  ROOT %c = f32[8] convolution(%x, %x), backend_config={"estimated_cycles":"1"}
}

%product (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %a = f32[8] add(%x, %x), backend_config={"estimated_cycles":"2"}
  ROOT %f = f32[8] fusion(%a), kind=kOutput, calls=%inner
}

%sum (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  ROOT %a = f32[8] add(%x, %x), backend_config={"estimated_cycles":"4"}
}

%aside (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  ROOT %a = f32[8] scatter(%x, %x), backend_config={"estimated_cycles":"8"}
}

%goes_on (p: (s32[], f32[8])) -> pred[] {
  %p = (s32[], f32[8]) parameter(0)
  %n = s32[] constant(3)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8] get-tuple-element(%p), index=1
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  %f = f32[8] fusion(%x), calls=%product, backend_config={"estimated_cycles":"100"}
  %splash_mha_fwd.12 = f32[8] custom-call(%f), custom_call_target="tpu_custom_call"
  %splash_mha_fwd = f32[8] custom-call(%f), custom_call_target="tpu_custom_call"
  ROOT %t = (s32[], f32[8]) tuple(%j, %splash_mha_fwd)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %zero = s32[] constant(0)
  %g = f32[8] fusion(%x), calls=%sum, backend_config={"estimated_cycles":"1000"}
  %h = f32[8] custom-call(%x), custom_call_target="AllocateBuffer"
  %s = ((f32[8]), f32[8], u32[]) call-start(%x), async_execution_thread="sparsecore", to_apply=%aside
  %b = f32[8] call-done(%s)
  %d = f32[8] dot(%g, %g), backend_config={"estimated_cycles":"10000"}
  %t = (s32[], f32[8]) tuple(%zero, %g)
  %w = (s32[], f32[8]) while(%t), condition=%goes_on, body=%body
  ROOT %y = f32[8] get-tuple-element(%w), index=1
}
"""  # noqa: E501


class CountTest(absltest.TestCase):
  def test_fusions_count_as_a_whole(self):
    found = cycles.count(hlo.parse(_TEXT))
    # The dot, and three times the fusion with a product.
    self.assertEqual(found.matmul, (10_300.0,))
    # The fusion without one; what it and a sparse core do inside does not.
    self.assertEqual(found.other, (1000.0,))

  def test_calls_of_kernels_are_counted(self):
    found = cycles.count(hlo.parse(_TEXT))
    self.assertEqual(found.kernels, {'splash_mha_fwd': (6.0,)})

  def test_dynamic_loops_are_apart(self):
    text = _TEXT.replace('compare(%i, %n)', 'compare(%i, %i)')
    found = cycles.count(hlo.parse(text))
    self.assertEqual(found.matmul, (10_000.0, 100.0))
    self.assertEqual(found.other, (1000.0, 0.0))
    self.assertEqual(found.kernels, {'splash_mha_fwd': (0.0, 2.0)})


if __name__ == '__main__':
  absltest.main()
