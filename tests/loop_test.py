"""Tests of `training.loop`: whole runs of a policy of 20,000 parameters."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import signal
import tempfile
import threading
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

import tiny_run
from dapo_jax.monitor import catalogue
from dapo_jax.monitor import progress as progress_lib
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.rewards import reward
from dapo_jax.rollout import dynamic_sampling, grading, meter
from dapo_jax.training import (
  advantages,
  assemble,
  checkpoint,
  evaluate,
  learn,
  loop,
  losses,
  trainer,
)

# All responses of a step: 4 prompts of 4.
_ALL = {'train.samples_logged': 16}


def _train(config, folder, *, devices=1) -> str:
  """Trains and returns what was printed."""
  printed = io.StringIO()
  with tiny_run.devices(devices), contextlib.redirect_stdout(printed):
    loop.train(config, str(folder))
  return printed.getvalue()


def _saved(config, folder, *, devices=1):
  """Returns the newest checkpoint's (state, progress), on the host."""
  with (
    tiny_run.devices(devices),
    checkpoint.open_store(folder, keep=2) as store,
  ):
    parts = assemble.build(config, folder)
    made = trainer.make_trainer(
      config,
      parts,
      losses.supervised_loss,
      temperature=1.0,
      with_critic=config.advantage.estimator == 'gae',
    )
    state, progress = trainer.start_or_resume(made, store)
    return jax.device_get(state), progress


_metrics = tiny_run.metrics_rows


class _Test(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = self.new_folder()

  def new_folder(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    return pathlib.Path(folder.name)

  def assert_trees_equal(self, a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


_STRAIGHT: dict[str, object] = {}


class _StraightTest(_Test):
  """Compares with one run of 6 steps that nothing disturbed."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.config = tiny_run.policy_config(_ALL)
    cls.straight = tiny_run.folder() / 'straight'
    if not _STRAIGHT:
      _STRAIGHT['printed'] = _train(cls.config, cls.straight)
      _STRAIGHT['saved'] = _saved(cls.config, cls.straight)

  def assert_same_run(self, folder):
    """Checks parameters, moments, ordinals, metrics and samples, bit by bit."""
    state, progress = _saved(self.config, folder)
    straight_state, straight_progress = _STRAIGHT['saved']
    self.assert_trees_equal(state, straight_state)
    self.assertEqual(
      progress._replace(pending=None), straight_progress._replace(pending=None)
    )
    self.assertEqual(_metrics(folder), _metrics(self.straight))
    self.assertEqual(
      (folder / 'samples.jsonl').read_text(),
      (self.straight / 'samples.jsonl').read_text(),
    )
    self.assert_same_model(folder)

  def assert_same_model(self, folder):
    self.assertEqual(
      (folder / 'model' / 'model.safetensors').read_bytes(),
      (self.straight / 'model' / 'model.safetensors').read_bytes(),
    )


class RunTest(_StraightTest):
  def test_a_line_of_metrics_a_step(self):
    rows = tiny_run.read_jsonl(self.straight / 'metrics.jsonl')
    self.assertEqual([row['step'] for row in rows], list(range(7)))
    for row in rows:
      catalogue.check(set(row) - {'step'})
      self.assertEqual('eval/accuracy_frac' in row, row['step'] % 3 == 0)
    for row in rows[1:]:
      self.assertEqual(row['step/rollout_step_count'], row['step'])
      # 4 groups are 2 minibatches of 2.
      self.assertEqual(row['optim/update_count'], 2)
      self.assertEqual(row['step/update_count'], 2 * row['step'])
      self.assertEqual(row['filter/trained_prompts_count'], 4)
      self.assertGreater(row['optim/grad_norm'], 0)
      # lr(s) = 1e-3 * min(1, (s + 1) / 4), s from 0.
      self.assertAlmostEqual(
        row['optim/lr'], 1e-3 * min(1, row['step'] / 4), places=12
      )

  def test_totals_are_the_sums_of_the_steps(self):
    rows = tiny_run.read_jsonl(self.straight / 'metrics.jsonl')[1:]
    total = lambda name: sum(row[name] for row in rows)
    last = rows[-1]
    self.assertEqual(last['step/round_count'], total('filter/rounds_count'))
    self.assertEqual(
      last['step/prompt_count'], total('filter/drawn_prompts_count')
    )
    # Refills happen, so that the ordinal does not count steps.
    self.assertGreater(last['step/round_count'], 6)
    _, progress = _STRAIGHT['saved']
    self.assertEqual(progress.next_ordinal, last['step/prompt_count'])

  def test_the_first_update_of_a_step_has_the_sampler_s_policy(self):
    for row in tiny_run.read_jsonl(self.straight / 'metrics.jsonl')[1:]:
      self.assertLess(row['policy/sampler_gap_max_nats'], 1e-4)
      self.assertLess(row['policy/ratio_min'], 1.0)
      self.assertGreater(row['policy/ratio_max'], 1.0)

  def test_samples_are_all_that_was_trained(self):
    rows = tiny_run.read_jsonl(self.straight / 'samples.jsonl')
    self.assertEqual(
      [row['step'] for row in rows], [s for s in range(1, 7) for _ in range(16)]
    )
    metrics = tiny_run.read_jsonl(self.straight / 'metrics.jsonl')
    for step in range(1, 7):
      ours = [row for row in rows if row['step'] == step]
      by_ordinal = {}
      for row in ours:
        by_ordinal.setdefault(row['ordinal'], []).append(row['correct'])
      self.assertLen(by_ordinal, 4)
      for correct in by_ordinal.values():
        self.assertBetween(sum(correct), 1, 3)
      rewards = [row['correctness'] + row['overlong'] for row in ours]
      self.assertAlmostEqual(
        metrics[step]['reward/mean'], np.mean(rewards), places=12
      )
    # No draw is trained twice.
    ordinals = [sorted({r['ordinal'] for r in rows if r['step'] == s})
                for s in range(1, 7)]  # fmt: skip
    flat = sum(ordinals, [])
    self.assertEqual(flat, sorted(set(flat)))

  def test_it_says_where_everything_is(self):
    printed = _STRAIGHT['printed']
    self.assertIn(str(self.straight), printed)
    self.assertRegex(printed, r'held-out accuracy: \d.*% before, .*% after 6 ')

  def test_the_policy_moved(self):
    before = assemble.initial_params(
      self.config, assemble.build(self.config, self.new_folder())
    )
    state, _ = _STRAIGHT['saved']
    moved = np.abs(before['block']['q'] - state.params['block']['q']).max()
    self.assertBetween(moved, 1e-4, 1e-1)

  def test_done_already(self):
    folder = self.new_folder() / 'copy'
    shutil.copytree(self.straight, folder)
    files = ('metrics.jsonl', 'samples.jsonl')
    before = [(folder / f).read_bytes() for f in files]
    with mock.patch.object(loop, '_step', side_effect=AssertionError):
      printed = _train(self.config, folder)
    self.assertIn('done', printed)
    self.assertEqual([(folder / f).read_bytes() for f in files], before)
    self.assert_same_run(folder)

  def test_an_exported_policy_that_is_gone_is_made_again(self):
    folder = self.new_folder() / 'copy'
    shutil.copytree(self.straight, folder)
    shutil.rmtree(folder / 'model')
    with mock.patch.object(loop, '_step', side_effect=AssertionError):
      _train(self.config, folder)
    self.assert_same_run(folder)


class ResumeTest(_StraightTest):
  def test_3_steps_and_3_more_equal_6_straight(self):
    three = tiny_run.policy_config({**_ALL, 'train.steps': 3})
    _train(three, self.folder)
    _, progress = _saved(self.config, self.folder)
    self.assertEqual(progress.counters.rollout_steps, 3)
    printed = _train(self.config, self.folder)
    self.assertIn('resumed after step 3', printed)
    self.assertIn('train.steps: 3 -> 6', printed)
    self.assert_same_run(self.folder)

  def test_a_kill_after_step_4_goes_on_from_the_checkpoint_of_step_3(self):
    config = tiny_run.policy_config({**_ALL, 'checkpoint.every_steps': 3})
    check = loop._finite

    def fail(step, metrics, **how):
      if step == 5:
        raise MemoryError
      return check(step, metrics, **how)

    with mock.patch.object(loop, '_finite', fail):
      with self.assertRaises(MemoryError):
        _train(config, self.folder)
    # Step 4 was written and is written again.
    self.assertLen(_metrics(self.folder), 5)
    _, progress = _saved(config, self.folder)
    self.assertEqual(progress.counters.rollout_steps, 3)
    _train(config, self.folder)
    self.assert_same_run(self.folder)

  @parameterized.parameters(
    # where, the last step that is saved, and the last that has its line
    ('rollout', 3, 3),
    ('wait', 3, 3),
    ('update', 4, 4),
    ('evaluation', 3, 2),
  )
  def test_interrupted_and_resumed_equals_straight(self, where, saved, written):
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with _interruption(where):
      printed = _train(self.config, self.folder)
    self.assertEqual(
      handlers,
      (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)),
    )
    self.assertIn('the same command goes on', printed)
    self.assertFalse((self.folder / 'model').exists())
    _, progress = _saved(self.config, self.folder)
    self.assertEqual(progress.counters.rollout_steps, saved)
    self.assertEqual(progress.pending is None, saved == written)
    self.assertEqual(
      [row['step'] for row in _metrics(self.folder)], list(range(written + 1))
    )
    _train(self.config, self.folder)
    self.assert_same_run(self.folder)

  def test_a_fault_of_the_reward_loses_no_step(self):
    with _interruption('judge'), self.assertRaises(grading.JudgeError):
      _train(self.config, self.folder)
    _, progress = _saved(self.config, self.folder)
    self.assertEqual(progress.counters.rollout_steps, 3)
    _train(self.config, self.folder)
    self.assert_same_run(self.folder)

  def test_interrupted_in_the_last_evaluation_is_done_after_the_next(self):
    with _interruption('last evaluation'):
      _train(self.config, self.folder)
    self.assertIsNotNone(_saved(self.config, self.folder)[1].pending)
    _train(self.config, self.folder)
    self.assertEqual(_metrics(self.folder), _metrics(self.straight))
    self.assert_same_model(self.folder)
    with mock.patch.object(evaluate, 'measure', side_effect=AssertionError):
      printed = _train(self.config, self.folder)
    # The line knows the accuracy that the checkpoint could not.
    accuracy = _metrics(self.straight)[-1]['eval/accuracy_frac']
    self.assertIn(f'{accuracy:.1%} after 6 steps', printed)

  def test_killed_after_the_first_line_still_knows_the_accuracy_before(self):
    with mock.patch.object(loop, '_step', side_effect=MemoryError):
      with self.assertRaises(MemoryError):
        _train(self.config, self.folder)
    self.assertLen(_metrics(self.folder), 1)
    self.assertIn('% before', _train(self.config, self.folder))
    self.assert_same_run(self.folder)

  def test_a_policy_of_fewer_steps_is_written_again_after_a_kill(self):
    three = tiny_run.policy_config({**_ALL, 'train.steps': 3})
    _train(three, self.folder)
    # All 6 steps are saved, and the policy of 3 is still there.
    with mock.patch.object(assemble, 'export', side_effect=MemoryError):
      with self.assertRaises(MemoryError):
        _train(self.config, self.folder)
    _train(self.config, self.folder)
    self.assert_same_model(self.folder)

  def test_interrupted_before_the_first_step(self):
    with _interruption('first evaluation'):
      _train(self.config, self.folder)
    self.assertEqual(_metrics(self.folder), [])
    self.assertEqual(_saved(self.config, self.folder)[1].pending, {})
    _train(self.config, self.folder)
    self.assert_same_run(self.folder)


@contextlib.contextmanager
def _interruption(where):
  """Sends a signal once, in step 4 or in an evaluation, or judges no more."""
  kill = lambda number: os.kill(os.getpid(), number)
  show, row = progress_lib.Progress.rollout, progress_lib.Progress.step
  measure, seen = evaluate.measure, {'chunks': 0, 'evaluations': 0, 'step': 0}
  judge, add_wait, waited = (
    reward.judge,
    meter.Meter.add_wait,
    threading.Event(),
  )

  def rollout(self, **shown):
    if seen['step'] == 3:
      seen['chunks'] += 1
      if where == 'rollout' and seen['chunks'] == 2:
        kill(signal.SIGTERM)
    show(self, **shown)

  def step(self, number, metrics):
    seen['step'] = number
    if where == 'update' and number == 4:
      kill(signal.SIGINT)
    row(self, number, metrics)

  def measured(*args, **kwargs):
    seen['evaluations'] += 1
    due = {
      'first evaluation': 1,
      'evaluation': 2,
      'last evaluation': 3,
    }.get(where)
    if seen['evaluations'] == due:
      kill(signal.SIGINT)
    return measure(*args, **kwargs)

  def judged(*args, **kwargs):
    if where == 'judge' and seen['chunks']:
      raise ZeroDivisionError
    if where == 'wait' and seen['chunks']:
      waited.wait(60)
    return judge(*args, **kwargs)

  def waits(self, seconds):
    if where == 'wait' and seen['chunks'] and not waited.is_set():
      kill(signal.SIGINT)
      waited.set()
    add_wait(self, seconds)

  with (
    mock.patch.object(reward, 'judge', judged),
    mock.patch.object(meter.Meter, 'add_wait', waits),
    mock.patch.object(progress_lib.Progress, 'rollout', rollout),
    mock.patch.object(progress_lib.Progress, 'step', step),
    mock.patch.object(evaluate, 'measure', measured),
  ):
    yield


class RememberedTest(_Test):
  """A run whose state is more than a policy, stopped half way."""

  def _run(self, changes, *stops):
    """Returns the state, progress and metrics after runs to each stop."""
    folder = self.new_folder()
    for steps in stops:
      config = tiny_run.policy_config({**_ALL, **changes, 'train.steps': steps})
      _train(config, folder)
    return *_saved(config, folder), _metrics(folder)

  def assert_goes_on(self, changes):
    straight = self._run(changes, 4)
    resumed = self._run(changes, 2, 4)
    self.assert_trees_equal(straight[0], resumed[0])
    self.assertEqual(
      straight[1]._replace(pending=None), resumed[1]._replace(pending=None)
    )
    # An evaluation more, at the end of the first part.
    without = lambda rows: [
      {k: v for k, v in row.items() if not k.startswith('eval/')}
      for row in rows
    ]
    self.assertEqual(without(straight[2]), without(resumed[2]))
    return straight

  def test_the_history_of_prompts_goes_on(self):
    # 6 prompts, 4 a step without a filter: they come back in the second step.
    _, progress, rows = self.assert_goes_on(
      {
        'advantage.estimator': 'smooth',
        'advantage.ddof': 0,
        'filter.enabled': False,
        'data.arithmetic.max_per_terms': 8,
        'data.arithmetic.held_out_frac': 0.7,
        'eval.prompts': 2,
      }
    )
    visits = [entry.visits for entry in progress.history.values()]
    self.assertEqual(sum(visits), 4 * 4)
    self.assertGreater(max(visits), 1)
    self.assertGreater(rows[-1]['advantage/visits_mean_count'], 1)

  def test_a_critic_and_a_reference_go_on(self):
    state, _, rows = self.assert_goes_on(
      {
        'advantage.estimator': 'gae',
        'critic.lr': 1e-3,
        'objective.kl_coef': 0.1,
        'objective.kl_place': 'reward',
      }
    )
    self.assertGreater(
      float(np.abs(state.critic.params['value_head']).max()), 0.0
    )
    self.assertGreater(rows[-1]['policy/reference_kl_nats'], 0.0)

  def test_a_critic_that_shares_layers_goes_on(self):
    state, _, _ = self.assert_goes_on(
      {'advantage.estimator': 'gae', 'critic.shares_layers': True}
    )
    self.assertGreater(float(np.abs(state.params['value_head']).max()), 0.0)


class SettingsTest(_StraightTest):
  def _copy(self):
    folder = self.folder / 'copy'
    shutil.copytree(self.straight, folder)
    return folder

  def test_a_supervised_run_is_left_alone(self):
    folder = self.folder / 'sft'
    folder.mkdir()
    text = '{"step": 20, "sft/step_count": 20}\n'
    (folder / 'metrics.jsonl').write_text(text)
    with self.assertRaisesRegex(ValueError, 'supervised training.*--workdir'):
      _train(self.config, folder)
    self.assertEqual((folder / 'metrics.jsonl').read_text(), text)

  def test_a_folder_that_is_no_model_is_left_alone(self):
    folder = self.folder / 'mine'
    (folder / 'model').mkdir(parents=True)
    (folder / 'model' / 'notes.txt').write_text('keep')
    with self.assertRaisesRegex(ValueError, 'is not a model.*--workdir'):
      _train(self.config, folder)
    self.assertEqual((folder / 'model' / 'notes.txt').read_text(), 'keep')

  def test_a_setting_that_the_state_depends_on_is_refused(self):
    config = tiny_run.policy_config({**_ALL, 'objective.clip_high': 0.2})
    folder = self._copy()
    with self.assertRaisesRegex(
      ValueError, r'objective\.clip_high: 0\.28 -> 0\.2.*--workdir'
    ):
      _train(config, folder)
    self.assert_same_run(folder)

  def test_another_rate_is_noted_and_used(self):
    config = tiny_run.policy_config(
      {**_ALL, 'optim.lr': 5e-4, 'train.steps': 7}
    )
    folder = self._copy()
    printed = _train(config, folder)
    self.assertIn('changed since: optim.lr: 0.001 -> 0.0005', printed)
    rows = _metrics(folder)
    self.assertEqual(rows[:7], _metrics(self.straight))
    self.assertLen(rows, 8)
    self.assertEqual(rows[7]['optim/lr'], 5e-4)


class DevicesTest(_StraightTest):
  def test_8_devices_sample_the_tokens_and_pay_the_rewards_of_1(self):
    config = tiny_run.policy_config(
      {
        **_ALL,
        'mesh.fsdp': 4,
        'mesh.tensor': 2,
        'sampler.tensor': 2,
      }
    )
    _train(config, self.folder, devices=8)
    self.assertEqual(
      (self.folder / 'samples.jsonl').read_text(),
      (self.straight / 'samples.jsonl').read_text(),
    )
    for one, eight in zip(
      _metrics(self.straight), _metrics(self.folder), strict=True
    ):
      self.assertEqual(one.keys(), eight.keys())
      for name, value in one.items():
        self.assertAlmostEqual(value, eight[name], delta=1e-3, msg=name)
    # A run moves to other devices in its middle, too.
    longer = tiny_run.policy_config({**_ALL, 'train.steps': 7})
    _train(longer, self.folder, devices=1)
    self.assertLen(_metrics(self.folder), 8)


class MixtureTest(_Test):
  def test_a_run_goes_on_in_the_middle_of_an_order(self):
    source = self.new_folder() / 'sums.jsonl'
    source.write_text(
      ''.join(
        json.dumps({'problem': f'{i}+2=?', 'answer': str(i + 2)}) + '\n'
        for i in range(5)
      )
    )
    # Rounds of 6 are no multiple of the order's 5 draws.
    changes = {
      **_ALL,
      'data.source': '',
      'data.mixture': (('arithmetic', 3), (str(source), 2)),
      'train.steps': 2,
    }
    config = tiny_run.policy_config(changes)
    straight = self.new_folder()
    _train(config, straight)
    _train(tiny_run.policy_config({**changes, 'train.steps': 1}), self.folder)
    self.assertIn('resumed after step 1', _train(config, self.folder))
    (state, progress), (straight_state, straight_progress) = (
      _saved(config, folder) for folder in (self.folder, straight)
    )
    self.assert_trees_equal(state, straight_state)
    self.assertEqual(progress.next_ordinal, straight_progress.next_ordinal)
    samples = [
      (folder / 'samples.jsonl').read_text()
      for folder in (self.folder, straight)
    ]
    self.assertEqual(*samples)


class LimitTest(_Test):
  """No answer is ever right, so that every group is uniform."""

  def setUp(self):
    super().setUp()
    problems = self.new_folder() / 'hopeless.jsonl'
    problems.write_text(
      ''.join(
        json.dumps({'problem': f'{i}+1=?', 'answer': '7777'}) + '\n'
        for i in range(8)
      )
    )
    self.changes = {
      'data.source': str(problems),
      'eval.source': str(problems),
      'filter.max_rounds': 2,
      'train.steps': 2,
      'optim.weight_decay': 0.0,
    }

  def _config(self, action, **changes):
    return tiny_run.policy_config(
      {**self.changes, 'filter.on_limit': action, **changes}
    )

  def _initial_params(self, config):
    with tiny_run.devices(1):
      parts = assemble.build(config, self.folder)
      return jax.device_get(assemble.initial_params(config, parts))

  def test_error_says_what_was_drawn_and_keeps_the_state(self):
    config = self._config('error')
    # 1.5 * 4 prompts in each of 2 rounds.
    with self.assertRaisesRegex(
      dynamic_sampling.SamplingLimitError,
      '2 rounds drew 12 prompts: 0 have .*4 wanted.* 0 are all right, '
      '12 all wrong.*--config.filter.max_rounds',
    ):
      _train(config, self.folder)
    self.assertTrue((self.folder / 'checkpoints' / '0').exists())
    _, progress = _saved(config, self.folder)
    self.assertEqual(progress.counters.rollout_steps, 0)
    self.assertEqual(progress.next_ordinal, 0)
    self.assertIsNone(progress.pending)
    self.assertLen(_metrics(self.folder), 1)
    # The action may be changed, and the run goes on.
    _train(self._config('train_partial'), self.folder)
    self.assertLen(_metrics(self.folder), 3)

  def test_train_partial_without_a_group_skips_the_update(self):
    config = self._config('train_partial')
    printed = _train(config, self.folder)
    self.assertIn('skipped the update', printed)
    self.assertIn('12 all wrong', printed)
    state, progress = _saved(config, self.folder)
    self.assert_trees_equal(state.params, self._initial_params(config))
    self.assertEqual(progress.counters.updates, 0)
    self.assertEqual(progress.next_ordinal, 24)
    for row in _metrics(self.folder)[1:]:
      self.assertEqual(row['filter/skipped_update_count'], 1)
      self.assertEqual(row['filter/trained_prompts_count'], 0)
      self.assertEqual(row['optim/update_count'], 0)
      self.assertNotIn('policy/loss', row)
      self.assertNotIn('reward/mean', row)

  # With the overlong punishment, rewards differ where answers do not.
  @parameterized.parameters(True, False)
  def test_accept_uniform_makes_an_update_that_moves_nothing(self, overlong):
    config = self._config(
      'accept_uniform',
      **{**_ALL, 'overlong.enabled': overlong, 'rollout.temperature': 3.0},
    )
    _train(config, self.folder)
    samples = tiny_run.read_jsonl(self.folder / 'samples.jsonl')
    self.assertGreater(len({row['length_tokens'] for row in samples}), 3)
    state, progress = _saved(config, self.folder)
    self.assert_trees_equal(state.params, self._initial_params(config))
    self.assertEqual(progress.counters.updates, 4)
    rows = _metrics(self.folder)[1:]
    for row in rows:
      self.assertEqual(row['optim/grad_norm'], 0.0)
      self.assertEqual(row['optim/update_count'], 2)
      self.assertEqual(row['filter/skipped_update_count'], 0)
      self.assertEqual(row['filter/trained_prompts_count'], 4)
      self.assertEqual(row['filter/kept_prompts_count'], 0)
      self.assertEqual(row['reward/overlong_mean'] < 0, overlong)


class GapTest(_Test):
  def test_a_gap_above_the_threshold_is_warned_of_once(self):
    config = tiny_run.policy_config(
      {'train.steps': 2, 'sampler.max_gap_nats': 1e-9}
    )
    printed = _train(config, self.folder)
    self.assertEqual(printed.count("warning: the sampler's log-probs"), 1)
    self.assertIn('sampler.max_gap_nats (1e-09)', ' '.join(printed.split()))

  def test_arithmetic_is_no_gap(self):
    config = tiny_run.policy_config({'train.steps': 1})
    self.assertNotIn('warning', _train(config, self.folder))


class MemoryTest(_Test):
  def test_nothing_of_the_engine_is_left_when_the_updates_begin(self):
    before = jax.live_arrays()

    def of_engine():
      """Returns how many arrays there are on the engine's mesh."""
      known = {id(array) for array in before}
      places = [
        array.sharding for array in jax.live_arrays() if id(array) not in known
      ]
      return sum(
        isinstance(place, jax.sharding.NamedSharding)
        and mesh_lib.SLOT_AXIS in place.mesh.shape
        for place in places
      )

    sampling, updating = [], []
    add, learned = meter.Meter.add, learn.learn

    def seen_add(self, report):
      sampling.append(of_engine())
      add(self, report)

    def seen_learn(*args, **how):
      updating.append(of_engine())
      return learned(*args, **how)

    with (
      mock.patch.object(meter.Meter, 'add', seen_add),
      mock.patch.object(learn, 'learn', seen_learn),
    ):
      _train(tiny_run.policy_config({'train.steps': 2}), self.folder)
    # The weights, at least, and the slots.
    self.assertGreater(min(sampling), 10)
    self.assertEqual(updating, [0, 0])


class NonFiniteTest(_Test):
  def _spoilt(self, step, *, responses):
    """Returns a context in which advantages of a step are not finite."""
    whole, calls = advantages.of_groups, []

    def spoil(*args):
      found = whole(*args)
      calls.append(1)
      if len(calls) == step:
        found.values.flat[list(responses)] = np.nan
      return found

    return mock.patch.object(advantages, 'of_groups', spoil)

  def test_an_update_that_is_not_finite_is_skipped_and_told(self):
    config = tiny_run.policy_config({'train.steps': 3})
    # Of the first of two minibatches.
    with self._spoilt(2, responses=[0]):
      printed = ' '.join(_train(config, self.folder).split())
    self.assertIn('skipped 1 updates that were not finite: the loss', printed)
    rows = _metrics(self.folder)[1:]
    found = [
      (row['optim/update_count'], row['optim/skipped_update_count'])
      for row in rows
    ]
    self.assertEqual(found, [(2, 0), (1, 1), (2, 0)])
    self.assertEqual([r['step/update_count'] for r in rows], [2, 3, 5])
    self.assertNotIn('advantage/abs_mean', rows[1])
    self.assertIn('policy/loss', rows[1])

  def test_several_in_a_row_stop_it_at_the_last_checkpoint(self):
    config = tiny_run.policy_config(
      {'checkpoint.every_steps': 1, 'optim.max_skipped_updates': 2}
    )
    # Each group has 4 responses, each minibatch 2 groups.
    with self._spoilt(3, responses=[0, 8]):
      with self.assertRaisesRegex(
        ValueError,
        r'step 3: 2 updates in a row were not finite \(the loss, .* '
        r'more\).*--config\.optim\.lr',
      ):
        _train(config, self.folder)
    _, progress = _saved(config, self.folder)
    self.assertEqual(progress.counters.rollout_steps, 2)

  def test_it_stops_and_keeps_the_last_checkpoint(self):
    config = tiny_run.policy_config({'checkpoint.every_steps': 1})
    whole = learn.learn

    def explode(*args, step):
      found = whole(*args, step=step)
      spoilt = {'policy/loss': np.nan} if step == 3 else {}
      return found._replace(metrics=found.metrics | spoilt)

    with mock.patch.object(learn, 'learn', explode):
      with self.assertRaisesRegex(
        ValueError, r'step 3: policy/loss not finite.*--config\.optim\.lr'
      ):
        _train(config, self.folder)
    _, progress = _saved(config, self.folder)
    self.assertEqual(progress.counters.rollout_steps, 2)


if __name__ == '__main__':
  absltest.main()
