"""Configuration of a tiny run that stays where its variant says.

For tests that end it there: `--config=tests/stopping_config.py:update`. It
prints `AT update` when it is there.
"""

import functools
import os
import resource
import threading
import time
import types
from collections.abc import Callable
from unittest import mock

import jax
import ml_collections

import tiny_run
from configs import base
from dapo_jax.monitor import progress
from dapo_jax.rewards import reward
from dapo_jax.training import (
  assemble,
  checkpoint,
  evaluate,
  model_folder,
  update,
  update_stats,
)

# Where the model is that all of these start from.
MODEL = 'STOPPING_TEST_MODEL'
GRACE_S = 4.0
# What differs from other tiny runs.
CHANGES = {
  'train.samples_logged': 16,
  'train.grace_s': GRACE_S,
  'checkpoint.every_steps': 2,
  'sft.steps': 8,
  'sft.eval_every_steps': 4,
}


def get_config(where: str) -> ml_collections.ConfigDict:
  """Returns the configuration, and makes the run stay at `where`."""
  one = types.SimpleNamespace(devices=lambda: jax.devices()[:1])
  mock.patch.object(assemble, 'jax', one).start()
  _STAYS[where]()
  config = base.get_config()
  config.update_from_flattened_dict(tiny_run.TINY)
  config.update_from_flattened_dict(
    {'model.path': os.environ[MODEL], **CHANGES}
  )
  return config


def blocked() -> None:
  """Computes for ever, outside of Python."""
  # A sine is never 2, which no compiler knows.
  endless = jax.jit(
    lambda x: jax.lax.while_loop(
      lambda x: x < 2, lambda x: jax.numpy.sin(x + 1), x
    )
  )
  jax.block_until_ready(endless(0.5))


@functools.cache
def _at(where: str) -> None:
  print(f'AT {where}\n', end='', flush=True)  # at once, also from threads


def _before(holder: object, name: str, number: int, act: Callable) -> None:
  """Calls `act` before the call of a function that has this number, from 1."""
  function, calls = getattr(holder, name), []

  def call(*args, **kwargs):
    calls.append(1)
    if len(calls) == number:
      act()
    return function(*args, **kwargs)

  mock.patch.object(holder, name, call).start()


def _sampling() -> None:
  """Samples slowly in step 4."""
  show, step = progress.Progress.rollout, progress.Progress.step
  steps = []

  def slow(self, **shown):
    if len(steps) == 3:
      _at('sampling')
      time.sleep(0.2)
    show(self, **shown)

  def noted(self, *args):
    steps.append(1)
    step(self, *args)

  mock.patch.object(progress.Progress, 'rollout', slow).start()
  mock.patch.object(progress.Progress, 'step', noted).start()


def _device() -> None:
  """Waits for the device for ever when the second evaluation begins."""

  def act():
    _at('device')
    blocked()

  # The first one is before the first step.
  _before(evaluate, 'measure', 2, act)


def _device_without_room() -> None:
  """The same, and no file may grow beyond a few bytes from there on.

  What was saved before is whole by then.
  """
  save = checkpoint.Store.save

  def waited(store, *args):
    save(store, *args)
    store.wait()

  mock.patch.object(checkpoint.Store, 'save', waited).start()

  def act():
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    _at('device without room')
    blocked()

  _before(evaluate, 'measure', 2, act)


def _grader() -> None:
  """All judges are inside jax for ever, from the first evaluation's end on."""

  def measured(*args, **kwargs):
    found = measure(*args, **kwargs)
    mock.patch.object(reward, 'judge', judge).start()
    return found

  def judge(*args, **kwargs):
    _at('grader')
    blocked()

  measure = evaluate.measure
  mock.patch.object(evaluate, 'measure', measured).start()


def _evaluation() -> None:
  """The verdicts of the evaluation after step 3 never come."""

  def judge(*args, **kwargs):
    _at('evaluation')
    threading.Event().wait()

  _before(
    evaluate,
    'measure',
    2,
    lambda: mock.patch.object(reward, 'judge', judge).start(),
  )


def _update(act: Callable[[], None]) -> None:
  """The update of step 4 takes what `act` takes."""
  _before(update_stats, 'update_metrics', 4, act)


def _endless_update() -> None:
  def act():
    _at('update')
    blocked()

  _update(act)


def _short_update() -> None:
  def act():
    _at('short update')
    time.sleep(1.0)

  _update(act)


def _compile() -> None:
  """The first update compiles for minutes."""
  make = update.make_update

  def made(*args, **kwargs):
    real = make(*args, **kwargs)

    def call(*args):
      _at('compile')
      _compiled_for_minutes()
      return real(*args)

    return call

  mock.patch.object(update, 'make_update', made).start()


def _compiled_for_minutes() -> None:
  def large(x):
    for i in range(2000):
      x = jax.numpy.sort(x * (i + 1.5)) @ x
    return x

  jax.jit(large).lower(jax.numpy.ones((8, 8))).compile()


def _save() -> None:
  """The second save takes a second more."""

  def act():
    _at('save')
    time.sleep(1.0)

  _before(checkpoint.Store, 'save', 2, act)


def _endless_save() -> None:
  """The second save never ends."""

  def act():
    _at('endless save')
    threading.Event().wait()

  _before(checkpoint.Store, 'save', 2, act)


def stay_loading() -> None:
  """The weights are read for ever."""

  def act():
    _at('loading')
    blocked()

  _before(model_folder, 'load', 1, act)


_STAYS = {
  'sampling': _sampling,
  'device': _device,
  'device_without_room': _device_without_room,
  'grader': _grader,
  'evaluation': _evaluation,
  'update': _endless_update,
  'short_update': _short_update,
  'compile': _compile,
  'save': _save,
  'endless_save': _endless_save,
  'loading': stay_loading,
}
