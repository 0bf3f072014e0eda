"""Checkpoints: everything a run is, at the boundary of a rollout step.

One Orbax item a step holds the train state; one JSON beside it, in the same
atomic commit, holds the counters, the draw ordinal, the accuracies, metrics
that have no line yet, the prompts' history and the configuration.
"""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from dapo_jax.rollout import dynamic_sampling, meter
from dapo_jax.rollout import history as history_lib

# Counted up when what is saved changes, the keys of a configuration included.
FORMAT_VERSION = 3

# Settings that may differ when a run goes on: they change speed, length, what
# is shown or how exactly the sampler computes, not what the state means.
CHANGEABLE = (
  'train.',
  'profile.',
  'checkpoint.',
  'eval.',
  'sampler.',
  'mesh.',
  'optim.lr',
  'critic.lr',
  'model.allow_download',
  'model.remat',
  'model.logits_chunk_tokens',
  'learner.pack_tokens',
  'learner.share_prompts',
  'learner.micro_batch_rows',
  'filter.max_rounds',
  'filter.on_limit',
  'reward.wait_s',
  'optim.max_skipped_updates',
)


class Counters(NamedTuple):
  """What was done since the start; each counts one thing."""

  rollout_steps: int = 0
  updates: int = 0
  rounds: int = 0
  prompts: int = 0
  tokens: int = 0
  # Updates until now that moved nothing, one after the other.
  skipped_in_a_row: int = 0

  def after_step(
    self,
    tally: dynamic_sampling.Tally,
    totals: meter.Meter,
    faults: Sequence[Sequence[str]],
  ) -> 'Counters':
    """Returns the counters one rollout step later.

    Args:
      tally: the prompts of the step.
      totals: its sampling.
      faults: what was not finite in each of its updates.
    """
    in_a_row = self.skipped_in_a_row
    for names in faults:
      in_a_row = in_a_row + 1 if names else 0
    return Counters(
      skipped_in_a_row=in_a_row,
      rollout_steps=self.rollout_steps + 1,
      updates=self.updates + sum(not names for names in faults),
      rounds=self.rounds + tally.rounds,
      prompts=self.prompts + tally.drawn,
      tokens=self.tokens + totals.tokens,
    )

  def metrics(self) -> dict[str, int | float]:
    """Returns the `step/` metrics."""
    return {
      'step/rollout_step_count': self.rollout_steps,
      'step/update_count': self.updates,
      'step/round_count': self.rounds,
      'step/prompt_count': self.prompts,
      'step/token_count': self.tokens,
    }


class Progress(NamedTuple):
  """The host's part of a run's state."""

  counters: Counters = Counters()
  next_ordinal: int = 0
  # Held-out accuracy before training, and the last time it was measured.
  first_accuracy: float | None = None
  last_accuracy: float | None = None
  # Metrics of the last step while its evaluation and its line are not done;
  # {} before training, when step 0 is still to be evaluated.
  pending: dict[str, int | float] | None = {}
  # Rewards of each prompt's earlier visits.
  history: history_lib.History = {}


@contextlib.contextmanager
def open_store(
  workdir: str | pathlib.Path, *, keep: int | None
) -> Iterator['Store']:
  """Yields the store of a work directory; waits for its saves at the end."""
  store = Store(workdir, keep=keep)
  try:
    yield store
  finally:
    store.close()


class Store:
  """The checkpoints of one work directory."""

  def __init__(self, workdir: str | pathlib.Path, *, keep: int | None):
    self._manager = ocp.CheckpointManager(
      pathlib.Path(workdir).absolute() / 'checkpoints',
      options=ocp.CheckpointManagerOptions(max_to_keep=keep),
    )

  def latest_step(self) -> int | None:
    """Returns the newest complete checkpoint's step, None without one."""
    return self._manager.latest_step()

  def save(
    self, state: Any, progress: Progress, config: Mapping[str, Any]
  ) -> None:
    """Begins to save; the arrays may be donated once this returns."""
    step = progress.counters.rollout_steps
    if step == self.latest_step():
      return
    about = {
      'format_version': FORMAT_VERSION,
      'config': config,
      **progress._asdict(),
      'counters': progress.counters._asdict(),
      'history': history_lib.to_json(progress.history),
    }
    self._manager.save(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardSave(state),
        about=ocp.args.JsonSave(about),
      ),
    )

  def restore(self, like: Any) -> tuple[Any, Progress]:
    """Returns the newest checkpoint's state and progress.

    Args:
      like: a tree of ShapeDtypeStruct with the shardings to restore to.

    Raises:
      ValueError: when it is of another format.
    """
    step = self.latest_step()
    about = self._about(step)
    args = ocp.args.Composite(state=ocp.args.StandardRestore(like))
    return self._manager.restore(step, args=args).state, _progress(about)

  def restore_params(
    self, shapes: Any, shardings: Any, *, step: int | None = None
  ) -> tuple[Any, int] | None:
    """Returns (parameters alone, their step); None without any.

    They are the newest, unless a step is given.

    Raises:
      ValueError: when they are of another format.
    """
    step = self.latest_step() if step is None else step
    if step is None:
      return None
    self._about(step)
    like = jax.tree.map(
      lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
      shapes,
      shardings,
    )
    args = ocp.args.PyTreeRestore(
      {'params': like},
      restore_args=ocp.checkpoint_utils.construct_restore_args(
        {'params': like}
      ),
      partial_restore=True,
    )
    restored = self._manager.restore(step, args=ocp.args.Composite(state=args))
    return restored.state['params'], step

  def changes_since_saved(self, config: Mapping[str, Any]) -> list[str]:
    """Returns the settings that differ from the newest checkpoint's.

    Raises:
      ValueError: when a setting changed that the saved state depends on, or
        the checkpoint is of another format.
    """
    if self.latest_step() is None:
      return []
    return config_changes(self.saved_config(), config)

  def saved_config(self, step: int | None = None) -> dict[str, Any]:
    """Returns the configuration in a checkpoint, the newest unless given.

    Raises:
      ValueError: when there is no such checkpoint, or of another format.
    """
    steps = self._manager.all_steps()
    step = self.latest_step() if step is None else step
    if step not in steps:
      raise ValueError(
        f'there is no checkpoint {"" if step is None else step} in '
        f'{self._manager.directory}; there are {sorted(steps) or "none"}'
      )
    return self._about(step)['config']

  def _about(self, step: int) -> dict[str, Any]:
    """Returns what is saved beside the arrays, if its format is today's."""
    args = ocp.args.Composite(about=ocp.args.JsonRestore())
    about = self._manager.restore(step, args=args).about
    if about['format_version'] != FORMAT_VERSION:
      raise ValueError(
        f'checkpoint {step} in {self._manager.directory} has format '
        f'{about["format_version"]} and this version of dapo-jax reads format '
        f'{FORMAT_VERSION}: use the version that wrote it, or another --workdir'
      )
    return about

  def close(self) -> None:
    """Waits for saves under way and ends."""
    self._manager.wait_until_finished()
    self._manager.close()


def config_changes(
  saved: Mapping[str, Any], now: Mapping[str, Any]
) -> list[str]:
  """Returns `key: old -> new` of settings that changed and may.

  Raises:
    ValueError: when a setting changed that the state depends on; lists all.
  """
  old, new = dict(_leaves(saved)), dict(_leaves(now))
  missing = object()
  changed = [
    k
    for k in sorted(old.keys() | new.keys())
    if old.get(k, missing) != new.get(k, missing)
  ]
  text = lambda k: f'{k}: {old.get(k)!r} -> {new.get(k)!r}'
  fixed = [k for k in changed if not k.startswith(CHANGEABLE)]
  if fixed:
    raise ValueError(
      'this work directory holds a run with other settings '
      f'({"; ".join(map(text, fixed))}); give the old values, or another '
      '--workdir'
    )
  return [text(k) for k in changed]


def _leaves(tree: Mapping[str, Any], prefix: str = ''):
  for key, value in tree.items():
    if isinstance(value, Mapping):
      yield from _leaves(value, f'{prefix}{key}.')
    else:
      yield f'{prefix}{key}', _with_tuples(value)


def _with_tuples(value: Any) -> Any:
  """Returns the value as a configuration has it: JSON has lists alone."""
  if isinstance(value, list | tuple):
    return tuple(map(_with_tuples, value))
  return value


def _progress(about: Mapping[str, Any]) -> Progress:
  special = ('counters', 'history')
  return Progress(
    counters=Counters(**about['counters']),
    history=history_lib.from_json(about['history']),
    **{f: about[f] for f in Progress._fields if f not in special},
  )
