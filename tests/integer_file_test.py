"""Tests of `dapo_jax.data.integer_file`."""

import contextlib
import io
import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from dapo_jax.data import (
  integer_file,
  openai_client,
  refusals,
  sources,
)

_SURD = {'id': 7, 'problem': 'How long is it?', 'answer': '11-2\\sqrt{6}'}
_NAME = {'problem': 'Who is it?', 'answer': '\\text{Eve}', 'level': 3}
_WHOLE = {'problem': 'How many?', 'answer': '42', 'solution': 'Answer: 42'}
_REPLY = (
  '<format>a name</format><problem>How many letters?</problem>'
  '<solution>So.</solution><integer>3</integer>'
)


def _model(prompts):
  """Rewrites everything in one way, and solves it."""
  return [
    _REPLY if '<format>' in prompt else '<integer>3</integer>'
    for prompt in prompts
  ]


class RunTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.out = self.folder / 'new' / 'out.jsonl'
    self.refused = self.folder / 'new' / 'out.jsonl.refused.jsonl'

  def _run(self, rows, **kwargs):
    """Returns the rows kept and refused, and what was printed."""
    source = self.folder / 'in.jsonl'
    source.write_text('\n'.join(json.dumps(row) for row in rows))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      integer_file.run(source, self.out, **kwargs)
    kept, refused = (
      [json.loads(line) for line in path.read_text().splitlines()]
      for path in (self.out, self.refused)
    )
    return kept, refused, printed.getvalue()

  def test_rows_keep_their_fields_and_their_order(self):
    kept, refused, printed = self._run([_SURD, _NAME, _WHOLE])
    self.assertEqual(
      kept[0],
      {
        'id': 7,
        'problem': kept[0]['problem'],
        'answer': 19,
        'original_answer': '11-2\\sqrt{6}',
        'integer_form': 'k - m\\sqrt{n}',
        'integer_by': 'rule',
      },
    )
    self.assertStartsWith(kept[0]['problem'], 'How long is it?\n\nWrite the')
    self.assertEqual(
      kept[1],
      {
        'problem': 'How many?',
        'answer': 42,
        'solution': 'Answer: 42',
        'original_answer': '42',
        'integer_form': 'unchanged',
        'integer_by': 'rule',
      },
    )
    self.assertEqual(refused, [{**_NAME, 'refused_for': 'text'}])
    self.assertEqual(
      printed,
      '3 rows: 2 kept (1 unchanged, 1 by the rule, 0 by the model), 1 refused\n'
      f'     1 text: {refusals.REASONS["text"]}\n'
      f'wrote {self.out} and out.jsonl.refused.jsonl\n',
    )

  def test_what_is_written_can_be_trained_on(self):
    self._run([_SURD, _WHOLE])
    self.assertEqual(
      [prompt.gold for prompt in sources.load(self.out)], ['19', '42']
    )

  def test_rows_of_other_schemas_become_ours(self):
    verl = {
      'prompt': [{'role': 'user', 'content': 'How long is it?'}],
      'reward_model': {'ground_truth': '3/4', 'style': 'rule'},
      'data_source': 'some',
    }
    gsm8k = {'question': 'How many?', 'answer': '1+1 = <<1+1=2>>2\n#### 2'}
    [first, second], _, _ = self._run([verl, gsm8k])
    self.assertStartsWith(first.pop('problem'), 'How long is it?\n\nWrite the')
    self.assertEqual(
      first,
      {
        'data_source': 'some',
        'answer': 7,
        'original_answer': '3/4',
        'integer_form': '\\frac{m}{n}',
        'integer_by': 'rule',
      },
    )
    self.assertEqual(second['problem'], 'How many?')
    self.assertEqual(second['answer'], 2)
    self.assertEqual(second['solution'], '1+1 = 2\nAnswer: 2')
    self.assertNotIn('question', second)

  def test_a_system_message_of_another_schema_is_kept(self):
    turns = [
      {'role': 'system', 'content': 'Be short.'},
      {'role': 'user', 'content': 'How long is it?'},
    ]
    row = {'prompt': turns, 'reward_model': {'ground_truth': '3/4'}}
    [kept], _, _ = self._run([row])
    self.assertEqual(kept['messages'][0], turns[0])
    self.assertNotIn('problem', kept)
    self.assertNotIn('prompt', kept)

  def test_the_last_message_is_the_one_that_is_extended(self):
    turns = [
      {'role': 'system', 'content': 'Be short.'},
      {'role': 'user', 'content': 'How long is it?', 'name': 'me'},
    ]
    [row], _, _ = self._run([{'messages': turns, 'answer': '3/4'}])
    self.assertEqual(row['messages'][0], turns[0])
    self.assertEqual(row['messages'][1]['name'], 'me')
    self.assertIn('?\n\nWrite the answer as', row['messages'][1]['content'])
    self.assertNotIn('problem', row)

  def test_a_conversation_that_the_user_does_not_end_is_refused(self):
    turns = [{'role': 'assistant', 'content': 'It is'}]
    _, [row], _ = self._run(
      [{'messages': turns, 'answer': '3/4'}], model=_model
    )
    self.assertEqual(row['refused_for'], 'no_question')

  def test_a_solution_of_another_answer_gets_another_name(self):
    [row], _, _ = self._run([{**_SURD, 'solution': 'Answer: 11-2\\sqrt{6}'}])
    self.assertNotIn('solution', row)
    self.assertEqual(row['original_solution'], 'Answer: 11-2\\sqrt{6}')

  def test_the_model_is_asked_for_what_the_rule_refuses(self):
    kept, refused, printed = self._run([_SURD, _NAME], model=_model)
    self.assertEqual([row['integer_by'] for row in kept], ['rule', 'model'])
    self.assertEqual(
      kept[1],
      {
        'problem': 'How many letters?',
        'answer': 3,
        'level': 3,
        'original_answer': '\\text{Eve}',
        'integer_form': 'a name',
        'integer_by': 'model',
      },
    )
    self.assertEmpty(refused)
    self.assertIn(
      '2 kept (0 unchanged, 1 by the rule, 1 by the model)', printed
    )

  def test_asked_for_all_it_must_agree_with_the_rule(self):
    kept, refused, _ = self._run([_SURD, _NAME], model=_model, ask='all')
    self.assertEqual([row['answer'] for row in kept], [3])
    self.assertEqual(refused, [{**_SURD, 'refused_for': 'disagrees_with_rule'}])

  def test_refused_rows_can_be_given_to_another_model(self):
    _, refused, _ = self._run([_NAME], model=lambda p: ['?'] * len(p))
    self.assertEqual(refused[0]['refused_for'], 'reply_form')
    self.out.unlink()
    self.refused.unlink()
    [row], _, _ = self._run(refused, model=_model)
    self.assertNotIn('refused_for', row)
    self.assertEqual(row['answer'], 3)

  def test_a_second_time_changes_nothing(self):
    kept, _, _ = self._run([_SURD])
    self.out.unlink()
    self.refused.unlink()
    self.assertEqual(self._run(kept)[0], kept)

  def test_fields_that_are_null_are_none(self):
    # As parquet has them where other rows have them.
    nulls = {'prompt': None, 'messages': None, 'solution': None}
    [row], _, _ = self._run([_SURD | nulls])
    self.assertNoCommonElements(row, nulls)
    self.assertEqual(row['answer'], 19)

  @parameterized.parameters(openai_client.EndpointError, KeyboardInterrupt)
  def test_what_ends_the_model_midway_costs_only_what_is_left(self, error):
    calls = []

    def failing(prompts):
      calls.append(len(prompts))
      if len(calls) > 2:
        raise error
      return _model(prompts)

    # 64 rows at a time: rewritten by the first call, solved by the second.
    rows = [_NAME] * 64 + [_SURD] + [_NAME] * 70
    with self.assertLogs(level='ERROR'):
      kept, refused, _ = self._run(rows, model=failing, ask='all')
    self.assertEqual(calls, [64, 320, 64])
    self.assertLen(kept, 65)
    self.assertEqual(kept[64]['integer_by'], 'rule')
    self.assertEqual(
      {row['refused_for'] for row in refused}, {'endpoint_failed'}
    )

  def test_a_folder_that_can_not_be_is_told_before_the_model_is_asked(self):
    (self.folder / 'new').write_text('mine')
    with self.assertRaisesRegex(ValueError, 'new must be a folder'):
      self._run([_NAME], model=self.fail)

  def test_an_endpoint_that_never_answers_is_an_error(self):
    def failing(prompts):
      raise openai_client.EndpointError('gone')

    with self.assertRaisesRegex(openai_client.EndpointError, 'gone'):
      self._run([_NAME], model=failing)
    self.assertFalse(self.out.exists())

  @parameterized.parameters('out.jsonl', 'out.jsonl.refused.jsonl')
  def test_nothing_is_overwritten(self, name):
    self.out.parent.mkdir()
    (self.out.parent / name).write_text('mine')
    with self.assertRaisesRegex(ValueError, f'{name} exists already; '):
      self._run([_SURD])
    self.assertEqual((self.out.parent / name).read_text(), 'mine')

  def test_a_line_that_is_no_problem_is_told(self):
    with self.assertRaisesRegex(ValueError, r'in.jsonl:2: field `answer`'):
      self._run([_SURD, {'problem': 'x'}])

  def test_no_problem(self):
    with self.assertRaisesRegex(ValueError, 'no problem; change --from'):
      self._run([])

  def test_no_half_file_is_left(self):
    self._run([_SURD])
    self.assertEqual(
      {path.name for path in self.out.parent.iterdir()},
      {self.out.name, self.refused.name},
    )


class EndpointModelTest(absltest.TestCase):
  def test_needs_both_or_none(self):
    def model(url, name):
      return integer_file.endpoint_model(
        url, name, key_env='', temperature=1.0, max_tokens=1
      )

    self.assertIsNone(model('', ''))
    self.assertEqual(model('http://x', 'y').args[0].model, 'y')
    with self.assertRaisesRegex(ValueError, 'both --endpoint=URL and --model'):
      model('http://x', '')


class ReasonTest(absltest.TestCase):
  def test_every_reason_is_in_the_documentation_with_its_meaning(self):
    page = pathlib.Path(__file__).resolve().parents[1] / 'docs/data.md'
    rows = [f'| `{r}` | {text} |' for r, text in refusals.REASONS.items()]
    self.assertContainsSubset(rows, page.read_text().splitlines())


if __name__ == '__main__':
  absltest.main()
