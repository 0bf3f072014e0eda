"""Tests of `training.prompts`."""

import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

import tiny_run
from dapo_jax.data import tokenizers
from dapo_jax.training import assemble, prompts


class _Test(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def build(self, changes=None, *, devices=1):
    with tiny_run.devices(devices):
      return assemble.build(tiny_run.config(changes), self.folder)

  def jsonl(self, name, problems):
    path = self.folder / name
    rows = [{'problem': p, 'answer': a} for p, a in problems]
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return str(path)


class DataTest(_Test):
  def test_no_problem_is_both_trained_and_evaluated(self):
    train, held_out = prompts.load(tiny_run.config())
    # 100 sums of two digits; the share held out is met up to chance.
    self.assertBetween(len(train), 80, 96)
    self.assertLen(held_out, 6)
    text = lambda found: {p.messages[0].content for p in found}
    self.assertEmpty(text(train) & text(held_out))

  def test_jsonl(self):
    train = self.jsonl('train.jsonl', [('1+1=?', '2'), ('2+2=?', '4')])
    held_out = self.jsonl('held.jsonl', [(f'{i}+3=?', '7') for i in range(7)])
    parts = self.build({'data.source': train, 'eval.source': held_out})
    self.assertEqual([p.gold for p in parts.train_prompts], ['2', '4'])
    self.assertEqual(
      [p.messages[0].content for p in parts.eval_prompts],
      [f'{i}+3=?' for i in range(6)],
    )

  def test_examples_stand_before_each_prompt_and_are_not_trained_on(self):
    plain = self.build()
    parts = self.build({'data.shots': 2, 'data.max_prompt_tokens': 64,
                        'learner.pack_tokens': 96})  # fmt: skip
    first, second = plain.train_prompts[:2]
    self.assertLen(parts.train_prompts, len(plain.train_prompts) - 2)
    for shown, prompt in zip(
      [*parts.train_prompts, *parts.eval_prompts],
      [*plain.train_prompts[2:], *plain.eval_prompts],
      strict=True,
    ):
      self.assertEqual(
        [m.content for m in shown.messages],
        [
          first.messages[0].content,
          first.solution,
          second.messages[0].content,
          second.solution,
          prompt.messages[0].content,
        ],
      )

  def test_examples_that_leave_nothing_to_train_on_name_the_flag(self):
    with self.assertRaisesRegex(
      ValueError, r'\(500\) leaves none .*--config\.data\.shots'
    ):
      self.build({'data.shots': 500})

  def test_too_few_problems_to_evaluate_name_the_flags(self):
    held_out = self.jsonl('held.jsonl', [('1+1=?', '2')])
    with self.assertRaisesRegex(
      ValueError,
      r'wants 6 problems, there are 1; .*--config\.eval\.prompts or '
      r'--config\.eval\.source',
    ):
      self.build({'eval.source': held_out})

  @parameterized.parameters('data.source', 'eval.source')
  def test_a_prompt_that_is_too_long_names_the_flag(self, key):
    problems = [(f'{i}+1=?', '2') for i in range(6)]
    sources = {
      'data.source': self.jsonl('train.jsonl', problems),
      'eval.source': self.jsonl('held.jsonl', problems),
    }
    sources[key] = self.jsonl('long.jsonl', [*problems, ('x' * 99, '2')])
    changes = {**sources, 'eval.prompts': 6 + (key == 'eval.source')}
    with self.assertRaisesRegex(
      ValueError,
      r'1 of 1\d prompts .* longer than 8 tokens.*--config\.data\.max_prompt',
    ):
      self.build({**changes, 'tokenizer.path': self._tokenizer()})

  def test_long_training_prompts_are_dropped_and_counted_if_so_asked(self):
    problems = [(f'{i}+1=?', '2') for i in range(6)]
    long = self.jsonl('long.jsonl', [*problems, ('x' * 99, '2')])
    changes = {
      'data.source': long,
      'eval.source': self.jsonl('held.jsonl', problems),
      'data.overlong': 'drop',
      'tokenizer.path': self._tokenizer(),
    }
    with self.assertLogs('absl', level='WARNING') as logs:
      parts = self.build(changes)
    self.assertLen(parts.train_prompts, 6)
    self.assertIn('dropped 1 of 7 training prompts', '\n'.join(logs.output))
    # One to evaluate on never is.
    with self.assertRaisesRegex(ValueError, '1 of 13 prompts are longer'):
      self.build({**changes, 'eval.source': long, 'eval.prompts': 7})

  def test_dropping_all_training_prompts_is_an_error(self):
    with self.assertRaisesRegex(
      ValueError, r'all 2 training prompts .* 8 tokens; change --config\.data'
    ):
      self.build(
        {
          'data.source': self.jsonl('l.jsonl', [(c * 99, '2') for c in 'xy']),
          'eval.source': self.jsonl('h.jsonl', [('1', '2'), ('2', '2')]),
          'eval.prompts': 2,
          'data.overlong': 'drop',
          'tokenizer.path': self._tokenizer(),
        }
      )

  def _tokenizer(self):
    path = self.folder / 'own.model'
    tokenizers.train_sentencepiece(
      ['1+1=?\n', 'Answer: 2'], path, vocab_size=280
    )
    return str(path)


if __name__ == '__main__':
  absltest.main()
