"""The papers' ladders: what each variant is, and how it differs from the next.

Tests of configs/dapo_qwen2p5_32b.py, configs/dcpo_qwen2p5_math.py and
configs/demo_ladder.py.
"""

import itertools
import pathlib
from typing import Any

from absl.testing import absltest, parameterized

from configs import dapo_qwen2p5_32b, dcpo_qwen2p5_math, demo_ladder
from dapo_jax import config, config_keys
from dapo_jax.data import procedural

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# What the user gives.
_SOURCES = (
  '--config.data.source=train.jsonl',
  '--config.eval.source=eval.jsonl',
)
_METHODS = tuple(dcpo_qwen2p5_math.METHODS)
_SIZES = tuple(dcpo_qwen2p5_math.MODELS)


def _dapo(row: str, *more: str):
  return config.load(
    f'{_ROOT}/configs/dapo_qwen2p5_32b.py:{row}', (*_SOURCES, *more)
  )


def _dcpo(method: str, size: str = '7b', *more: str):
  file = f'{_ROOT}/configs/dcpo_qwen2p5_math.py:{method}_{size}'
  return config.load(file, (*_SOURCES, *more))


def _demo(name: str):
  return config.load(f'{_ROOT}/configs/demo_ladder.py:{name}')


def _differences(a, b) -> dict[str, tuple[Any, Any]]:
  """Returns the values of each key that differs, by its dotted path."""
  a, b = dict(config_keys.leaves(a)), dict(config_keys.leaves(b))
  return {key: (a[key], b[key]) for key in a if a[key] != b[key]}


def _lines(differences) -> str:
  return 'what differs:\n' + '\n'.join(
    f'  --config.{key}: {old} -> {new}'
    for key, (old, new) in differences.items()
  )


class LadderCase(parameterized.TestCase):
  def assert_differences(self, a, b, expected):
    """Checks that exactly these keys differ, and by these values."""
    found = _differences(a, b)
    self.assertEqual(found, expected, _lines(found))


class DapoTest(LadderCase):
  def test_rows_are_those_of_the_table_in_its_order(self):
    self.assertEqual(
      list(dapo_qwen2p5_32b.ROWS),
      [
        'naive_grpo',
        'overlong_filtering',
        'clip_higher',
        'soft_overlong',
        'token_loss',
        'dapo',
      ],
    )

  def test_each_row_differs_from_the_one_before_by_its_technique(self):
    expected = {
      'overlong_filtering': {'overlong.truncated': ('wrong', 'masked')},
      'clip_higher': {'objective.clip_high': (0.2, 0.28)},
      'soft_overlong': {
        'overlong.enabled': (False, True),
        'overlong.truncated': ('masked', 'as_graded'),
      },
      'token_loss': {'objective.aggregation': ('sequence_mean', 'token_mean')},
      'dapo': {'filter.enabled': (False, True)},
    }
    for before, row in itertools.pairwise(dapo_qwen2p5_32b.ROWS):
      with self.subTest(row):
        self.assert_differences(_dapo(before), _dapo(row), expected[row])

  def test_naive_grpo_has_no_technique(self):
    c = _dapo('naive_grpo')
    self.assertEqual(c.objective.clip_low, c.objective.clip_high)
    self.assertEqual(c.objective.aggregation, 'sequence_mean')
    self.assertFalse(c.filter.enabled)
    self.assertFalse(c.overlong.enabled)
    self.assertEqual(c.overlong.truncated, 'wrong')

  def test_values_are_those_of_section_4_1(self):
    for row in dapo_qwen2p5_32b.ROWS:
      c = _dapo(row)
      with self.subTest(row):
        self.assertEqual(c.rollout.prompts_per_step, 512)
        self.assertEqual(c.rollout.responses_per_prompt, 16)
        # 512 prompts in parts of 32 are 16 updates, each of 512 responses.
        self.assertEqual(c.learner.minibatch_prompts, 32)
        self.assertEqual(c.learner.epochs, 1)
        self.assertEqual(c.rollout.max_response_tokens, 20_480)
        self.assertEqual(c.overlong.cache_tokens, 4096)
        self.assertEqual((c.optim.lr, c.optim.warmup_steps), (1e-6, 20))
        self.assertEqual(c.objective.kl_coef, 0.0)
        self.assertIsNone(c.objective.dual_clip)
        self.assertEqual(c.rollout.oversample, 3.0)
        self.assertEqual((c.reward.right, c.reward.wrong), (1.0, -1.0))
        self.assertEqual((c.eval.prompts, c.eval.samples_per_prompt), (30, 32))

  def test_the_last_row_is_the_default(self):
    file = f'{_ROOT}/configs/dapo_qwen2p5_32b.py'
    self.assert_differences(config.load(file, _SOURCES), _dapo('dapo'), {})


class DcpoTest(LadderCase):
  @parameterized.product(method=_METHODS, size=_SIZES)
  def test_sizes_differ_by_the_model_alone(self, method, size):
    models = dcpo_qwen2p5_math.MODELS
    self.assertLen(models, 4)
    expected = {'model.path': (models['7b'], models[size])}
    self.assert_differences(
      _dcpo(method), _dcpo(method, size), expected if size != '7b' else {}
    )

  # What each method has that GRPO has not (appendix A.9).
  @parameterized.parameters(
    (
      'dac',
      {
        'objective.bounds': ('fixed', 'dac'),
        'objective.clip_low': (0.2, 0.16),
        'objective.dual_clip': (None, 10.0),
      },
    ),
    ('sas', {'advantage.estimator': ('group', 'smooth')}),
    ('otm', {'objective.aggregation': ('sequence_mean', 'only_token_mean')}),
    (
      'dcpo',
      {
        'objective.bounds': ('fixed', 'dac'),
        'objective.clip_low': (0.2, 0.16),
        'objective.dual_clip': (None, 10.0),
        'advantage.estimator': ('group', 'smooth'),
        'objective.aggregation': ('sequence_mean', 'only_token_mean'),
        'objective.kl_coef': (0.001, 0.0),
      },
    ),
    (
      'gspo',
      {
        'objective.ratio': ('token', 'sequence'),
        'objective.clip_low': (0.2, 3e-4),
        'objective.clip_high': (0.2, 4e-4),
        'objective.kl_coef': (0.001, 0.0),
      },
    ),
    (
      'dapo',
      {
        'objective.clip_high': (0.2, 0.28),
        'objective.dual_clip': (None, 10.0),
        'objective.aggregation': ('sequence_mean', 'token_mean'),
        'filter.enabled': (False, True),
        'overlong.enabled': (False, True),
        'overlong.cache_tokens': (4096, 512),
        'objective.kl_coef': (0.001, 0.0),
      },
    ),
  )
  def test_methods_differ_from_grpo_by_what_they_name(self, method, expected):
    self.assert_differences(_dcpo('grpo'), _dcpo(method), expected)

  @parameterized.parameters(*_METHODS)
  def test_values_are_those_of_appendix_a_9(self, method):
    c = _dcpo(method)
    self.assertEqual(c.rollout.prompts_per_step, 512)
    self.assertEqual(c.rollout.responses_per_prompt, 16)
    self.assertEqual(c.learner.minibatch_prompts, 32)
    self.assertEqual(c.data.max_prompt_tokens, 1024)
    self.assertEqual(c.rollout.max_response_tokens, 3072)
    self.assertEqual(c.train.steps, 400)
    self.assertEqual(
      (c.reward.right, c.reward.wrong, c.reward.no_answer), (1.0, 0.0, -1.0)
    )
    self.assertEqual((c.optim.lr, c.optim.warmup_steps), (1e-6, 10))
    self.assertEqual(c.objective.ratio_max, 10.0)

  def test_dcpo_on_7b_is_the_default(self):
    file = f'{_ROOT}/configs/dcpo_qwen2p5_math.py'
    self.assert_differences(config.load(file, _SOURCES), _dcpo('dcpo'), {})


class UsersPartTest(parameterized.TestCase):
  @parameterized.parameters(
    'dapo_qwen2p5_32b.py:dapo', 'dcpo_qwen2p5_math.py:dcpo_7b'
  )
  def test_the_user_names_the_data(self, variant):
    file = f'{_ROOT}/configs/{variant}'
    with self.assertRaisesRegex(config.ConfigError, '^data.source '):
      config.load(file)
    with self.assertRaisesRegex(config.ConfigError, '^eval.source '):
      config.load(file, _SOURCES[:1])

  def test_no_model_is_fetched_unless_the_user_says_so(self):
    for c in (_dapo('dapo'), _dcpo('dcpo')):
      self.assertFalse(c.model.allow_download)
    own = '--config.model.path=folder'
    self.assertEqual(_dapo('dapo', own).model.path, 'folder')
    self.assertEqual(_dcpo('dcpo', '14b', own).model.path, 'folder')


class DemoLadderTest(LadderCase):
  def test_names_are_both_ladders(self):
    self.assertEqual(
      set(demo_ladder.NAMES),
      {*dapo_qwen2p5_32b.ROWS, *dcpo_qwen2p5_math.METHODS},
    )

  @parameterized.parameters(*demo_ladder.NAMES)
  def test_every_name_is_valid_and_on_the_same_task(self, name):
    same = ('data', 'eval', 'rollout', 'optim', 'learner', 'train')
    found = _differences(_demo('dapo'), _demo(name))
    self.assertEmpty([k for k in found if k.startswith(same)], _lines(found))

  @parameterized.parameters(*demo_ladder.NAMES)
  def test_rewards_and_deviation_are_those_of_its_paper(self, name):
    paper = _dapo if name in dapo_qwen2p5_32b.ROWS else _dcpo
    found = _differences(_demo(name), paper(name))
    # Every grader says the same of a sum.
    found.pop('reward.grader')
    same = ('reward', 'advantage', 'objective', 'filter.enabled')
    self.assertEmpty([k for k in found if k.startswith(same)], _lines(found))

  def test_rows_and_methods_differ_as_the_papers_do(self):
    pairs = list(itertools.pairwise(dapo_qwen2p5_32b.ROWS))
    for a, b in pairs:
      with self.subTest(b):
        expected = _differences(_dapo(a), _dapo(b))
        self.assert_differences(_demo(a), _demo(b), expected)
    for method in ('gspo', 'dcpo', 'dac', 'sas', 'otm'):
      with self.subTest(method):
        expected = _differences(_dcpo('grpo'), _dcpo(method))
        self.assert_differences(_demo('grpo'), _demo(method), expected)

  def test_every_problem_is_drawn_at_least_four_times(self):
    c = _demo('sas')
    self.assertFalse(c.filter.enabled)
    train, held_out = self._problems(c.data.arithmetic.max_per_terms)
    drawn = c.train.steps * c.rollout.prompts_per_step
    self.assertGreaterEqual(drawn, 4 * len(train))
    self.assertGreaterEqual(len(held_out), c.eval.prompts)

  def test_the_warm_up_sees_no_problem_that_is_held_out(self):
    _, held_out = self._problems(_demo('sas').data.arithmetic.max_per_terms)
    warm_up, _ = self._problems(None)
    self.assertNotEmpty(held_out)
    self.assertEmpty({p.id for p in held_out} & {p.id for p in warm_up})

  def _problems(self, max_per_terms):
    c = _demo('sas').data.arithmetic
    return procedural.arithmetic(
      min_terms=c.min_terms,
      terms=c.terms,
      digits=c.digits,
      max_per_terms=max_per_terms,
      in_words=c.in_words,
      held_out_frac=c.held_out_frac,
      worked_frac=c.worked_frac,
    )


class DocstringTest(parameterized.TestCase):
  @parameterized.parameters(
    (dapo_qwen2p5_32b, tuple(dapo_qwen2p5_32b.ROWS)),
    (dcpo_qwen2p5_math, (*_METHODS, *_SIZES)),
    (demo_ladder, demo_ladder.NAMES),
  )
  def test_every_name_is_explained(self, module, names):
    for name in names:
      self.assertRegex(module.__doc__, rf'\b{name}\b')


if __name__ == '__main__':
  absltest.main()
