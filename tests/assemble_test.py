"""Tests of `training.assemble`."""

import json
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

import built_run
import tiny_groups
import tiny_run
from dapo_jax.data import tokenizers
from dapo_jax.training import assemble


class EncodeTest(built_run.Case):
  def test_a_prompt_is_encoded_by_its_template(self):
    parts = self.build(
      {
        'data.template': 'dapo',
        'data.max_prompt_tokens': 900,
        'tokenizer.vocab_size': 320,
        'learner.pack_tokens': None,
      }
    )
    prompt = parts.train_prompts[0]
    plain = self.build().encode(prompt)
    tokens = parts.encode(prompt)
    self.assertEqual(tokens.dtype, np.int32)
    self.assertGreater(len(tokens), len(plain) + 20)
    self.assertIn(
      prompt.messages[0].content, parts.tokenizer.decode(tokens.tolist())
    )


class TokenizerTest(built_run.Case):
  def test_it_is_trained_once(self):
    tokenizer = self.build().tokenizer
    file = self.folder / 'tokenizer.model'
    before = file.read_bytes()
    train = mock.patch.object(
      tokenizers, 'train_sentencepiece', side_effect=AssertionError
    )
    with train:
      again = self.build({'data.arithmetic.worked_frac': 1.0}).tokenizer
    self.assertEqual(file.read_bytes(), before)
    text = '3+4=?\nAnswer: 7'
    self.assertEqual(again.encode(text), tokenizer.encode(text))

  def test_a_given_one_is_used(self):
    own = self.folder / 'own.model'
    tokenizers.train_sentencepiece(['abc ' * 9], own, vocab_size=264)
    parts = self.build({'tokenizer.path': str(own)})
    self.assertEqual(
      parts.tokenizer.vocab_size, tokenizers.load(own).vocab_size
    )
    self.assertFalse((self.folder / 'tokenizer.model').exists())

  def test_the_model_has_a_row_for_every_token(self):
    parts = self.build()
    spec = parts.model.spec
    self.assertEqual(spec.vocab_size, parts.tokenizer.vocab_size)
    self.assertGreaterEqual(spec.vocab_rows, spec.vocab_size)
    self.assertEqual(spec.vocab_rows % 64, 0)

  def test_more_tokens_than_rows_name_the_flags(self):
    own = self.folder / 'own.model'
    texts = [f'{a}{b}{c} ' for a in 'abcdefgh' for b in 'ijkl' for c in 'mnop']
    tokenizers.train_sentencepiece(texts, own, vocab_size=420)
    self.assertGreater(tokenizers.load(own).vocab_size, 320)
    with self.assertRaisesRegex(
      ValueError,
      r'embedding.* 320 rows; .*--config\.tokenizer\.path or '
      r'--config\.model\.path',
    ):
      self.build(
        {
          'model.path': tiny_run.model_folder(),
          'tokenizer.path': str(own),
          'data.max_prompt_tokens': 16,
        }
      )


class SizesTest(built_run.Case):
  def test_a_mesh_that_is_not_the_devices_is_refused(self):
    with self.assertRaisesRegex(ValueError, r'3 x 1.*--config\.mesh\.data'):
      self.build({'mesh.fsdp': 3, 'learner.micro_batch_rows': 9,
                  'model.embed_dim': 33})  # fmt: skip

  def test_slots_that_the_devices_cannot_share_are_refused(self):
    if jax.device_count() < 8:
      self.skipTest('needs 8 devices, see XLA_FLAGS in tests/conftest.py')
    with self.assertRaisesRegex(
      ValueError, r'12.*8\).*--config\.sampler\.slots'
    ):
      self.build({'sampler.slots': 12}, devices=8)

  def test_more_slots_than_memory_are_refused_and_the_most_is_said(self):
    # A slot: keys and values, 2 layers of 2 heads of 8 for 16 entries, 4 KiB;
    # 8 tokens and log-probs; 41 bytes of counters and choices.
    slot_gib = (4096 + 64 + 41) / 2**30
    self.build({'sampler.cache_gib': 8.01 * slot_gib})
    with self.assertRaisesRegex(
      ValueError,
      r'^8 slots over 1 dev.*; 7 slots fit; .*--config\.sampler\.slots',
    ):
      self.build({'sampler.cache_gib': 7.99 * slot_gib})

  def test_rows_that_the_devices_cannot_share_are_refused(self):
    if jax.device_count() < 8:
      self.skipTest('needs 8 devices, see XLA_FLAGS in tests/conftest.py')
    with self.assertRaisesRegex(
      ValueError, r'\(2\).*8 devices.*--config\.learner\.micro_batch_rows'
    ):
      self.build({'learner.micro_batch_rows': 2}, devices=8)

  def test_a_response_beyond_the_context_is_refused(self):
    with self.assertRaisesRegex(
      ValueError, r'32768.*--config\.rollout\.max_response_tokens'
    ):
      self.build(
        {
          'rollout.max_response_tokens': 32_761,
          'learner.pack_tokens': None,
        }
      )


class JudgeTest(built_run.Case):
  @parameterized.parameters(
    # Of 8 tokens at most, the last 4 cost a quarter each.
    (4, 0.0),
    (5, -0.25),
    (6, -0.5),
    (8, -1.0),
  )
  def test_parts_of_the_reward(self, length_tokens, overlong):
    judge = self.build(
      {'reward.right': 2.0, 'reward.wrong': -3.0, 'overlong.factor': 0.5}
    ).judge
    prompt = tiny_groups.prompt(7)
    right = judge(prompt, 'Answer: 7', length_tokens)
    wrong = judge(prompt, 'Answer: 8', length_tokens)
    self.assertEqual((right.correct, right.correctness), (True, 2.0))
    self.assertEqual((wrong.correct, wrong.correctness), (False, -3.0))
    self.assertEqual(right.overlong, 0.5 * overlong)
    self.assertEqual(wrong.overlong, 0.5 * overlong)

  def test_no_punishment_when_it_is_off(self):
    # Its options are then not looked at.
    judge = self.build(
      {'overlong.enabled': False, 'overlong.cache_tokens': 999}
    ).judge
    self.assertEqual(judge(tiny_groups.prompt(7), 'Answer: 7', 8).overlong, 0)

  def test_the_prompt_is_no_part_of_what_is_judged(self):
    judge = self.build().judge
    self.assertFalse(judge(tiny_groups.prompt(7), 'I do not know', 4).correct)


class GradersTest(built_run.Case):
  def _changes(self, **changes):
    problems = [(f'{i}+1=?', str(i + 1)) for i in range(6)]
    return {
      'data.source': self.jsonl('train.jsonl', [*problems, ('x', '$$')]),
      'eval.source': self.jsonl('eval.jsonl', [*problems[1:], ('y', '$$')]),
      **changes,
    }

  def test_training_problems_that_cannot_be_won_are_dropped_and_listed(self):
    with self.assertLogs('absl', level='WARNING') as logs:
      parts = self.build(self._changes())
    self.assertLen(parts.train_prompts, 6)
    self.assertNotIn('$$', [p.gold for p in parts.train_prompts])
    # A score stays one of all problems.
    self.assertLen(parts.eval_prompts, 6)
    self.assertIn('kept 1 of 6', '\n'.join(logs.output))
    self.assertIn('dropped 1 of 7', '\n'.join(logs.output))
    for name in ('refused_golds.jsonl', 'refused_eval_golds.jsonl'):
      [row] = (self.folder / name).read_text().splitlines()
      self.assertEqual(json.loads(row)['gold'], '$$')

  def test_they_are_kept_if_so_asked(self):
    with self.assertLogs('absl', level='WARNING'):
      parts = self.build(self._changes(**{'data.unwinnable': 'keep'}))
    self.assertLen(parts.train_prompts, 7)

  @parameterized.parameters(
    ('equivalence', True), ('equivalence_box', True), ('dapo', False)
  )
  def test_the_grader_is_the_one_that_is_named(self, name, expected):
    judge = self.build({'reward.grader': name}).judge
    prompt = tiny_groups.prompt(7)._replace(gold='0.5')
    self.assertEqual(judge(prompt, '\\boxed{1/2}', 8).correct, expected)

  def test_the_score_of_a_function_of_the_users_is_the_reward(self):
    name = 'verdict_functions:graded_by_length'
    judge = self.build({'reward.grader': name}).judge
    judgement = judge(tiny_groups.prompt(7), 'abc', 4)
    self.assertEqual(judgement.correctness, 3.0)
    self.assertFalse(judgement.correct)

  def test_no_answer_in_the_form_asked_for_costs_what_is_said(self):
    judge = self.build(
      {
        'reward.grader': 'equivalence_box',
        'reward.wrong': 0.0,
        'reward.no_answer': -1.0,
      }
    ).judge
    prompt = tiny_groups.prompt(7)
    for text, expected in (
      (f'\\boxed{{{prompt.gold}}}', (1.0, 0.0)),
      ('\\boxed{x}', (0.0, 0.0)),
      (f'Answer: {prompt.gold}', (0.0, -1.0)),
    ):
      found = judge(prompt, text, 4)
      self.assertEqual((found.correctness, found.format), expected)


class ParamsTest(built_run.Case):
  def test_random_weights_are_those_of_the_seed(self):
    q = {}
    for seed in (0, 1, 0):
      config = tiny_run.config({'seed': seed})
      params = assemble.initial_params(config, self.build({'seed': seed}))
      values = np.asarray(params['block']['q'])
      np.testing.assert_array_equal(q.setdefault(seed, values), values)
    self.assertFalse(np.array_equal(q[0], q[1]))

  def test_8_devices_hold_the_same_weights(self):
    if jax.device_count() < 8:
      self.skipTest('needs 8 devices, see XLA_FLAGS in tests/conftest.py')
    changes = {'mesh.fsdp': 4, 'mesh.tensor': 2, 'sampler.tensor': 2}
    config = tiny_run.config(changes)
    parts = self.build(changes, devices=8)
    spread = assemble.initial_params(config, parts)
    one = assemble.initial_params(tiny_run.config(), self.build())
    jax.tree.map(np.testing.assert_array_equal, one, jax.device_get(spread))
    # The engine has its own layout of the same values.
    placed = jax.device_get(parts.to_engine(spread))
    np.testing.assert_array_equal(placed['embedding'], one['embedding'])
    for i, layer in enumerate(placed['block']):
      np.testing.assert_array_equal(layer['q'], one['block']['q'][i])


class ExportTest(built_run.Case):
  def setUp(self):
    super().setUp()
    self.parts = self.build()
    self.params = assemble.initial_params(tiny_run.config(), self.parts)
    self.model = self.folder / 'model'

  def test_what_is_exported_can_be_trained_on(self):
    assemble.export(self.model, self.parts, self.params)
    changes = {'model.path': str(self.model)}
    parts = self.build(changes)
    params = assemble.initial_params(tiny_run.config(changes), parts)
    jax.tree.map(np.testing.assert_array_equal, self.params, params)
    self.assertEqual(parts.model.spec, self.parts.model.spec)
    text = '3+4=?\nAnswer: 7'
    self.assertEqual(
      parts.tokenizer.encode(text), self.parts.tokenizer.encode(text)
    )
    self.assertEqual(parts.tokenizer.eos_ids, self.parts.tokenizer.eos_ids)

  def test_an_older_one_is_replaced(self):
    assemble.export(self.model, self.parts, self.params)
    (self.model / 'left_over').write_text('')
    doubled = jax.tree.map(lambda x: 2 * x, self.params)
    assemble.export(self.model, self.parts, doubled)
    self.assertFalse((self.model / 'left_over').exists())
    changes = {'model.path': str(self.model)}
    params = assemble.initial_params(
      tiny_run.config(changes), self.build(changes)
    )
    jax.tree.map(np.testing.assert_array_equal, doubled, params)

  def _fail_halfway(self):
    failing = mock.patch.object(tokenizers, 'save', side_effect=OSError('full'))
    with failing, self.assertRaises(OSError):
      assemble.export(self.model, self.parts, self.params)

  def test_a_folder_is_complete_or_absent(self):
    self._fail_halfway()
    self.assertFalse(self.model.exists())
    # What is left of it is in nobody's way.
    assemble.export(self.model, self.parts, self.params)
    self.assertEqual(
      [p.name for p in self.folder.iterdir() if p.name.startswith('model')],
      ['model'],
    )

  def test_a_failure_leaves_the_older_one_alone(self):
    assemble.export(self.model, self.parts, self.params)
    before = (self.model / 'model.safetensors').read_bytes()
    self._fail_halfway()
    self.assertEqual((self.model / 'model.safetensors').read_bytes(), before)
    self.assertTrue((self.model / 'tokenizer.model').exists())


if __name__ == '__main__':
  absltest.main()
