"""Tests of `training.checkpoint`, with real files."""

import copy
import functools
import json
import pathlib
import tempfile

import jax
import numpy as np
from absl.testing import absltest, parameterized

import tiny_model
import tiny_run
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.rewards import verifiers
from dapo_jax.rollout import dynamic_sampling, meter
from dapo_jax.sampling import scheduler
from dapo_jax.training import (
  checkpoint,
  checkpoint_files,
  optimizer,
  update,
)

_CONFIG = {'seed': 3, 'optim': {'lr': 1e-3, 'b1': 0.9}, 'model': {'path': ''}}


@functools.cache
def _model():
  # 64 rows, so that two devices can share them.
  return tiny_model.model(vocab_rows=64)


@functools.cache
def _adamw():
  return optimizer.adamw(
    b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.1, max_grad_norm=1.0
  )


def _shardings(*, fsdp=1, tensor=1):
  mesh = mesh_lib.update_mesh(
    jax.devices()[: fsdp * tensor], data=1, fsdp=fsdp, tensor=tensor
  )
  return update.state_shardings(_model(), _adamw(), mesh)


def _state(shardings, *, seed=0):
  """Returns a state in which no two numbers are alike, its count included."""
  params = tiny_model.params(_model(), seed=seed)
  grads = tiny_model.params(_model(), seed=seed + 1)
  _, opt_state = _adamw().update(grads, _adamw().init(params), params)
  return jax.device_put(update.TrainState(params, opt_state), shardings)


def _progress(step, **changes):
  counters = checkpoint.Counters(
    rollout_steps=step, updates=16, rounds=9, prompts=70, tokens=12_345
  )
  return checkpoint.Progress(
    counters=counters, next_ordinal=70, pending=None
  )._replace(**changes)


class _Test(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def open(self, *, keep=2):
    return checkpoint.open_store(self.folder, keep=keep)

  def save(self, state, progress, *, config=_CONFIG, keep=2):
    with self.open(keep=keep) as store:
      store.save(state, progress, config)

  def restore(self, shardings):
    with self.open() as store:
      return store.restore(update.abstract_state(_model(), _adamw(), shardings))

  def steps(self):
    names = [p.name for p in (self.folder / 'checkpoints').iterdir()]
    return sorted(int(n) for n in names if n.isdigit())

  def assert_trees_equal(self, a, b):
    self.assertEqual(jax.tree.structure(a), jax.tree.structure(b))
    jax.tree.map(np.testing.assert_array_equal, a, b)


class RoundTripTest(_Test):
  def test_state_comes_back_bit_for_bit(self):
    state = _state(_shardings())
    self.save(state, _progress(7))
    restored, _ = self.restore(_shardings())
    self.assert_trees_equal(jax.device_get(state), jax.device_get(restored))
    # The count of AdamW's bias correction is there, too.
    self.assertEqual(int(restored.opt_state[1].count), 1)

  @parameterized.parameters(
    {},
    {'pending': {}},
    {'pending': {'policy/loss': 0.1 + 0.2, 'optim/update_count': 2}},
    {'first_accuracy': 1 / 3, 'last_accuracy': 2 / 3},
    {'first_accuracy': 0.0},
  )
  def test_progress_comes_back(self, **changes):
    progress = _progress(7, **changes)
    self.save(_state(_shardings()), progress)
    _, restored = self.restore(_shardings())
    self.assertEqual(restored, progress)

  def test_a_new_run_has_done_nothing_and_step_0_is_to_be_evaluated(self):
    progress = checkpoint.Progress()
    self.assertEqual(sum(progress.counters), 0)
    self.assertEqual(progress.next_ordinal, 0)
    self.assertIsNone(progress.first_accuracy)
    self.assertEqual(progress.pending, {})

  def test_another_mesh_holds_the_same_state(self):
    if jax.device_count() < 8:
      self.skipTest('needs 8 devices, see XLA_FLAGS in tests/conftest.py')
    state = _state(_shardings(fsdp=8))
    expected = jax.device_get(state)
    meshes = ({'fsdp': 1}, {'fsdp': 4, 'tensor': 2}, {'fsdp': 2})
    for step, sizes in enumerate(meshes, start=1):
      self.save(state, _progress(step))
      shardings = _shardings(**sizes)
      state, _ = self.restore(shardings)
      self.assert_trees_equal(jax.device_get(state), expected)
      jax.tree.map(
        lambda x, where: self.assertEqual(x.sharding, where), state, shardings
      )

  def test_arrays_may_be_donated_once_save_returns(self):
    state = _state(_shardings())
    expected = jax.device_get(state)
    with self.open() as store:
      store.save(state, _progress(1), _CONFIG)
      jax.tree.map(lambda x: x.delete(), state)
    self.assert_trees_equal(
      jax.device_get(self.restore(_shardings())[0]), expected
    )

  def test_another_architecture_is_refused(self):
    self.save(_state(_shardings()), _progress(1))
    deeper = tiny_model.model(vocab_rows=64, layers=3)
    mesh = mesh_lib.update_mesh(jax.devices()[:1], data=1, fsdp=1, tensor=1)
    shardings = update.state_shardings(deeper, _adamw(), mesh)
    with self.open() as store, self.assertRaises(ValueError):
      store.restore(update.abstract_state(deeper, _adamw(), shardings))


class ParamsTest(_Test):
  def test_they_come_back_alone(self):
    state = _state(_shardings())
    self.save(state, _progress(4))
    shardings = _shardings(fsdp=2).params
    with self.open() as store:
      params, step = store.restore_params(_model().shapes, shardings)
    self.assertEqual(step, 4)
    self.assert_trees_equal(
      jax.device_get(params), jax.device_get(state.params)
    )
    jax.tree.map(
      lambda x, where: self.assertEqual(x.sharding, where), params, shardings
    )

  def test_there_are_none_without_a_checkpoint(self):
    with self.open() as store:
      self.assertIsNone(store.latest_step())
      self.assertIsNone(
        store.restore_params(_model().shapes, _shardings().params)
      )
      self.assertEqual(store.changes_since_saved({'anything': 1}), [])


class StoreTest(_Test):
  def _save_steps(self, *steps, keep=2):
    for step in steps:
      self.save(_state(_shardings(), seed=step), _progress(step), keep=keep)

  def test_the_newest_are_kept(self):
    self._save_steps(1, 2, 5)
    self.assertEqual(self.steps(), [2, 5])
    restored, progress = self.restore(_shardings())
    self.assertEqual(progress.counters.rollout_steps, 5)
    self.assert_trees_equal(
      jax.device_get(restored), jax.device_get(_state(_shardings(), seed=5))
    )

  def test_one_is_kept(self):
    self._save_steps(1, 2, keep=1)
    self.assertEqual(self.steps(), [2])

  def test_the_same_step_twice_is_saved_once(self):
    self._save_steps(3)
    with self.open() as store:
      for _ in range(2):
        store.save(_state(_shardings()), _progress(3), _CONFIG)
      store.save(_state(_shardings()), _progress(4), _CONFIG)
      store.save(_state(_shardings()), _progress(4), _CONFIG)
    self.assertEqual(self.steps(), [3, 4])

  def test_a_half_written_save_is_ignored_and_written_again(self):
    self._save_steps(1)
    half = self.folder / 'checkpoints' / '2.orbax-checkpoint-tmp'
    (half / 'state').mkdir(parents=True)
    (half / 'state' / 'array').write_text('half')
    with self.open() as store:
      self.assertEqual(store.latest_step(), 1)
      _, progress = store.restore(
        update.abstract_state(_model(), _adamw(), _shardings())
      )
      self.assertEqual(progress.counters.rollout_steps, 1)
      store.save(_state(_shardings(), seed=2), _progress(2), _CONFIG)
    self.assertEqual(self.steps(), [1, 2])

  @parameterized.parameters(
    # Whatever is asked of it, with a configuration that changed too.
    (lambda store: store.changes_since_saved({'seed': 4}),),
    (lambda store: store.saved_config(),),
    (
      lambda store: store.restore(
        update.abstract_state(_model(), _adamw(), _shardings())
      ),
    ),
    (
      lambda store: store.restore_params(
        _model().shapes, _shardings().params, step=1
      ),
    ),
  )
  def test_another_format_is_refused_in_one_line(self, ask):
    self._save_steps(1)
    [about] = (self.folder / 'checkpoints' / '1').glob('about/metadata')
    saved = json.loads(about.read_text())
    self.assertEqual(saved['format_version'], checkpoint_files.FORMAT_VERSION)
    about.write_text(json.dumps(saved | {'format_version': 1}))
    with self.open() as store, self.assertRaises(ValueError) as caught:
      ask(store)
    self.assertRegex(
      str(caught.exception), r'^checkpoint 1 in .* format 1 .*--workdir$'
    )

  def test_changed_settings_are_told_of_the_newest_checkpoint(self):
    config = tiny_run.config(
      {
        'rollout.stop_strings': ('Q:', ' '),
        'data.source': '',
        'data.mixture': (('arithmetic', 3), ('a.jsonl', 0.5)),
      }
    ).to_dict()
    self.save(_state(_shardings()), _progress(1), config=config)
    with self.open() as store:
      self.assertEqual(store.changes_since_saved(config), [])
      now = copy.deepcopy(config)
      now['optim']['lr'] = 0.25
      self.assertEqual(
        store.changes_since_saved(now), ['optim.lr: 0.001 -> 0.25']
      )
      now['seed'] = 5
      with self.assertRaisesRegex(ValueError, 'seed: 0 -> 5'):
        store.changes_since_saved(now)


class CountersTest(absltest.TestCase):
  def test_each_counts_one_thing(self):
    totals = meter.Meter(lambda: verifiers.Counts(0, 0))
    totals.add(scheduler.ChunkReport(9, 100, 1, 4, 0.5))
    tally = dynamic_sampling.Tally(
      rounds=3, drawn=24, kept=5, all_right=10, all_wrong=9, trained=4
    )
    counters = checkpoint.Counters(
      rollout_steps=10, updates=160, rounds=20, prompts=320, tokens=5000
    ).after_step(
      tally, totals.totals(), updates=16, faults=[['the loss']] + [[]] * 16
    )
    self.assertEqual(
      counters.metrics(),
      {
        'step/rollout_step_count': 11,
        'step/update_count': 176,
        'step/round_count': 23,
        'step/prompt_count': 344,
        'step/token_count': 5100,
      },
    )

  def test_skips_in_a_row_go_on_over_steps_and_end_with_an_update(self):
    totals = meter.Meter(lambda: verifiers.Counts(0, 0))
    tally = dynamic_sampling.NO_ROUNDS
    counters = checkpoint.Counters()
    for faults, expected in (
      ([['a'], ['a']], 2),
      ([], 2),
      ([['a']], 3),
      ([['a'], []], 0),
      ([[], ['a']], 1),
    ):
      counters = counters.after_step(
        tally, totals.totals(), updates=0, faults=faults
      )
      self.assertEqual(counters.skipped_in_a_row, expected)
    self.assertEqual(counters.updates, 0)


if __name__ == '__main__':
  absltest.main()
