"""Tests of `training.prompts`."""

from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized

import built_run
import tiny_run
from dapo_jax.data import tokenizers
from dapo_jax.training import prompts


class DataTest(built_run.Case):
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

  def test_tasks_train_and_evaluate_on_different_problems(self):
    pytest.importorskip('reasoning_gym')
    changes = {'data.source': 'task:chain_sum', 'data.task.problems': 200}
    train, held_out = prompts.load(tiny_run.config(changes))
    self.assertLen(held_out, 6)
    texts = {p.messages[0].content for p in train}
    self.assertEmpty(texts & {p.messages[0].content for p in held_out})
    # As a source to evaluate on, it is what it holds out.
    changes = {**changes, 'data.source': 'arithmetic'}
    changes['eval.source'] = 'task:chain_sum'
    self.assertEqual(prompts.load(tiny_run.config(changes))[1], held_out)

  def test_a_source_that_is_named_twice_is_read_once(self):
    file = self.jsonl('a.jsonl', [(f'{i}?', '1') for i in range(7)])
    changes = {
      'data.source': '',
      'data.mixture': ((file, 1), ('arithmetic', 1)),
      'eval.source': file,
    }
    with mock.patch.object(
      prompts.sources, 'load', wraps=prompts.sources.load
    ) as load:
      train, held_out = prompts.load(tiny_run.config(changes))
    load.assert_called_once_with(file)
    # What it is named by is of the mixture alone.
    self.assertEqual({p.source for p in held_out}, {''})
    self.assertEqual([p.id for p in train[:6]], [p.id for p in held_out])

  def test_examples_keep_what_a_prompt_is_judged_by(self):
    pytest.importorskip('reasoning_gym')
    changes = {'data.source': 'task:chain_sum', 'data.task.problems': 200}
    plain, _ = prompts.load(tiny_run.config(changes))
    shown, _ = prompts.load(tiny_run.config({**changes, 'data.shots': 1}))
    self.assertEqual([p.task for p in shown], [p.task for p in plain[1:]])
    self.assertNotEqual(shown[0].id, plain[1].id)

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


class FittingTest(built_run.Case):
  @parameterized.parameters(True, False)
  def test_each_prompt_is_encoded_once(self, drop):
    train, held_out = prompts.load(tiny_run.config())
    encode = mock.Mock(return_value=np.zeros(8))
    kept = prompts.fitting(train, held_out, encode, max_tokens=8, drop=drop)
    self.assertEqual(kept, train)
    self.assertEqual(encode.call_count, len(train) + len(held_out))


class MixtureTest(built_run.Case):
  def _config(self, mixture, changes=None):
    return tiny_run.config(
      {'data.source': '', 'data.mixture': mixture, **(changes or {})}
    )

  def test_prompts_know_their_source(self):
    file = self.jsonl('a.jsonl', [('1?', '1'), ('2?', '2')])
    train, held_out = prompts.load(self._config(((file, 1), ('arithmetic', 2))))
    alone, alone_held_out = prompts.load(tiny_run.config())
    self.assertEqual([p.source for p in train[:3]], [file, file, 'arithmetic'])
    self.assertEqual([p._replace(source='') for p in train[2:]], alone)
    # The file holds none out.
    self.assertEqual([p._replace(source='') for p in held_out], alone_held_out)

  def test_what_is_held_out_is_in_proportion(self):
    pytest.importorskip('reasoning_gym')
    mixed = (('arithmetic', 1), ('task:gcd', 2))
    _, held_out = prompts.load(self._config(mixed, {'data.task.problems': 100}))
    # At 1/2, 3/2, ... and at 1/4, 3/4, 5/4, 7/4, ...
    self.assertEqual(
      [p.dataset for p in held_out],
      ['gcd', 'arithmetic', 'gcd', 'gcd', 'arithmetic', 'gcd'],
    )

  def test_of_one_problem_in_two_sources_the_first_is_kept(self):
    first = self.jsonl('a.jsonl', [('1?', '1'), ('2?', '2')])
    (self.folder / 'b').mkdir()
    # The same file's name, so that the ids are the same.
    second = self.jsonl('b/a.jsonl', [('2?', '2'), ('3?', '3')])
    config = self._config(
      ((first, 1), (second, 1), ('arithmetic', 1)),
    )
    with self.assertLogs('absl', level='WARNING') as logs:
      train, _ = prompts.load(config)
    self.assertEqual([p.gold for p in train[:3]], ['1', '2', '3'])
    self.assertEqual([p.source for p in train[:3]], [first, first, second])
    self.assertIn(f'dropped 1 of 2 problems of {second} that', logs.output[0])

  def test_examples_are_the_first_source_s(self):
    file = self.jsonl('a.jsonl', [('1?', '1'), ('2?', '2')])
    mixed = (('arithmetic', 1), (file, 1))
    train, _ = prompts.load(self._config(mixed, {'data.shots': 1}))
    self.assertLen(train[-1].messages, 3)
    self.assertEqual(train[-1].source, file)
    with self.assertRaisesRegex(ValueError, r'leaves none of the 2 training'):
      prompts.load(self._config(mixed[::-1], {'data.shots': 2}))


class StreamOfTest(built_run.Case):
  def test_a_mixture_is_drawn_by_weight(self):
    file = self.jsonl('a.jsonl', [('1?', '1'), ('2?', '2')])
    config = tiny_run.config(
      {'data.source': '', 'data.mixture': ((file, 1), ('arithmetic', 3))}
    )
    train, _ = prompts.load(config)
    made = prompts.stream_of(train, config, round_prompts=6)
    draws = made.take(0, 40)
    self.assertEqual(sum(d.prompt.source == file for d in draws), 10)
    self.assertEqual({d.epoch for d in draws}, {0, 1, 2, 3, 4})
    with self.assertRaisesRegex(
      ValueError, r"no prompt of 'arithmetic' is left .*--config\.data\.mixt"
    ):
      prompts.stream_of(train[:2], config, round_prompts=6)

  def test_one_source_is_a_stream_with_or_without_its_tail(self):
    config = tiny_run.config()
    train, _ = prompts.load(config)
    # 4 prompts a step, 1.5 times.
    self.assertEqual(prompts.round_prompts(config), 6)
    self.assertLen(
      prompts.stream_of(train, config, round_prompts=6), len(train)
    )
    config = tiny_run.config({'data.tail': 'drop'})
    for size in (6, 32):
      made = prompts.stream_of(train, config, round_prompts=size)
      self.assertLen(made, len(train) // size * size)

  def test_a_round_without_the_filter_is_a_step(self):
    config = tiny_run.config({'filter.enabled': False})
    self.assertEqual(prompts.round_prompts(config), 4)


if __name__ == '__main__':
  absltest.main()
