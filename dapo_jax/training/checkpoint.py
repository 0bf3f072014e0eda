"""Checkpoints: everything a run is, at the boundary of a rollout step.

One Orbax item a step holds the train state; one JSON beside it, in the same
atomic commit, holds the counters, the draw ordinal, the accuracies, metrics
that have no line yet, the prompts' history, the configuration, where the run
came from, and a digest of every array and of itself. docs/checkpoints.md says
what that survives.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orbax.checkpoint as ocp
from etils import epath

from dapo_jax.data import tokenizers
from dapo_jax.model import spec as spec_lib
from dapo_jax.parallel import job as job_lib
from dapo_jax.parallel import placement
from dapo_jax.rollout import dynamic_sampling, meter
from dapo_jax.rollout import history as history_lib
from dapo_jax.training import (
  checkpoint_files,
  checkpoint_folder,
  digests,
  setting_changes,
  update_stats,
)
from dapo_jax.training import origin as origin_lib


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
    totals: meter.Totals,
    *,
    updates: int,
    faults: Sequence[Sequence[str]],
  ) -> 'Counters':
    """Returns the counters one rollout step later.

    Args:
      tally: the prompts of the step.
      totals: its sampling.
      updates: those that moved the policy.
      faults: what was not finite in each, of policy or critic.
    """
    skips = update_stats.skips(self.skipped_in_a_row, map(bool, faults))
    return Counters(
      skipped_in_a_row=skips.now,
      rollout_steps=self.rollout_steps + 1,
      updates=self.updates + updates,
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
  workdir: str | os.PathLike[str],
  *,
  keep: int | None,
  keep_every_steps: int | None = None,
  folder: str = '',
  read_only: bool = False,
  job: job_lib.Job | None = None,
) -> Iterator['Store']:
  """Yields the store of a work directory; waits for its saves at the end.

  Args:
    workdir: of the run.
    keep: how many of the newest checkpoints are kept; None = all.
    keep_every_steps: those of every so many steps are kept too.
    folder: where the checkpoints are; '' = WORKDIR/checkpoints.
    read_only: whether nothing is written, so that there need be no folder.
    job: the processes, which save and restore together; None = this one alone.

  Raises:
    checkpoint_files.SaveError: the last save failed.
    ValueError: the folder cannot be used, or what it holds.
  """
  files = checkpoint_files.Files(
    checkpoint_folder.locate(workdir, folder),
    keep=keep,
    keep_every_steps=keep_every_steps,
    read_only=read_only,
    job=job or job_lib.Job(),
  )
  with checkpoint_files.without_traces():
    try:
      yield Store(files)
    except BaseException:
      # Of two faults the first is told.
      with contextlib.suppress(checkpoint_files.SaveError):
        files.close()
      raise
    files.close()


class Store:
  """The checkpoints in one folder."""

  def __init__(self, files: checkpoint_files.Files):
    self._files = files
    self._origin: origin_lib.Origin | None = None

  @property
  def folder(self) -> epath.Path:
    """The folder."""
    return self._files.folder

  def latest_step(self) -> int | None:
    """Returns the newest whole checkpoint's step, None without one."""
    return self._files.latest_step()

  def check(self) -> None:
    """Returns at once unless a save that is over has failed.

    Raises:
      checkpoint_files.SaveError: it has.
    """
    self._files.check()

  def wait(self) -> None:
    """Waits until what was given to `save` is whole on the disk.

    Raises:
      checkpoint_files.SaveError: it could not be written.
    """
    self._files.wait()

  def save(
    self, state: Any, progress: Progress, config: Mapping[str, Any]
  ) -> None:
    """Begins to save; the arrays may be donated once this returns.

    Raises:
      checkpoint_files.SaveError: it cannot begin, or the save before failed.
    """
    self.check()
    step = progress.counters.rollout_steps
    if step == self.latest_step():
      return
    about = {
      'config': config,
      **progress._asdict(),
      'counters': progress.counters._asdict(),
      'history': history_lib.to_json(progress.history),
      'origin': self._origin and origin_lib.to_json(self._origin),
      'arrays': digests.leaves(state),
    }
    self._files.save(step, state, about)

  def restore(self, like: Any) -> tuple[Any, Progress]:
    """Returns the newest checkpoint's state and progress.

    Args:
      like: a tree of ShapeDtypeStruct with the shardings to restore to.

    Raises:
      ValueError: when it is of another format or model, or damaged.
    """
    step = self.latest_step()
    about = self._files.about(step)
    saved = digests.from_json(about['arrays'])
    self._files.check_kinds(step, saved, digests.kinds(like))
    state = self._files.state(step, ocp.args.StandardRestore(like))
    self._files.check_digests(step, saved, state)
    return state, _progress(about)

  def restore_params(
    self, shapes: Any, shardings: Any, *, step: int | None = None
  ) -> tuple[Any, int] | None:
    """Returns (parameters alone, their step); None without any.

    They are the newest, unless a step is given. A critic's head among them is
    left out.

    Raises:
      ValueError: when they are of another format or model, or damaged.
    """
    step = self.latest_step() if step is None else step
    if step is None:
      return None
    like = {'params': placement.abstract(shapes, shardings)}
    arrays = digests.from_json(self._files.about(step)['arrays'])
    saved = {p: leaf for p, leaf in arrays.items() if p.startswith('params/')}
    saved.pop('params/value_head', None)
    self._files.check_kinds(step, saved, digests.kinds(like))
    args = ocp.args.PyTreeRestore(
      like,
      restore_args=ocp.checkpoint_utils.construct_restore_args(like),
      partial_restore=True,
    )
    state = self._files.state(step, args)
    self._files.check_digests(step, saved, state)
    return state['params'], step

  def changes_since_saved(self, config: Mapping[str, Any]) -> list[str]:
    """Returns the settings that differ from the newest checkpoint's.

    Raises:
      ValueError: when a setting changed that the saved state depends on, or
        the checkpoint is of another format.
    """
    if self.latest_step() is None:
      return []
    return setting_changes.between(self.saved_config(), config)

  def begin_from(
    self, origin: origin_lib.Origin, *, may_change_data: bool
  ) -> list[str]:
    """Saves this origin from now on; returns what changed in it and may.

    Raises:
      ValueError: something changed that may not.
    """
    self._origin = origin
    saved = self.saved_origin()
    if saved is None:
      return []
    return origin_lib.changes(
      saved,
      origin,
      where=self._files.name(self.latest_step()),
      may_change_data=may_change_data,
    )

  def begin_from_reference(self, params: Any) -> None:
    """Saves the digest of the reference policy from now on.

    Raises:
      ValueError: it is another one than the checkpoint's.
    """
    now, saved = digests.of_all(params), self.saved_origin()
    if saved is not None:
      origin_lib.check_reference(
        saved.reference, now, where=self._files.name(self.latest_step())
      )
    self._origin = self._origin._replace(reference=now)

  def saved_origin(self, step: int | None = None) -> origin_lib.Origin | None:
    """Returns the origin in a checkpoint, the newest unless given, if any."""
    step = self.latest_step() if step is None else step
    saved = None if step is None else self._files.about(step)['origin']
    return saved and origin_lib.from_json(saved)

  def check_model(
    self,
    tokenizer: tokenizers.Tokenizer,
    model: spec_lib.Spec,
    *,
    step: int | None = None,
  ) -> None:
    """Raises ValueError where a checkpoint was made with others than these."""
    saved = self.saved_origin(step)
    if saved is None:
      return
    where = self._files.name(self.latest_step() if step is None else step)
    origin_lib.check_tokenizer(
      saved.tokenizer, tokenizers.fingerprint(tokenizer), where=where
    )
    origin_lib.check_model(saved, dataclasses.asdict(model), where=where)

  def saved_config(self, step: int | None = None) -> dict[str, Any]:
    """Returns the configuration in a checkpoint, the newest unless given.

    Keys that came after it have their defaults.

    Raises:
      ValueError: when there is no such checkpoint, or of another format.
    """
    steps = self._files.steps()
    step = self.latest_step() if step is None else step
    if step not in steps:
      raise ValueError(
        f'there is no checkpoint {"" if step is None else step} in '
        f'{self.folder}; there are {steps or "none"}'
      )
    return setting_changes.with_defaults(self._files.about(step)['config'])


def _progress(about: Mapping[str, Any]) -> Progress:
  special = ('counters', 'history')
  return Progress(
    counters=Counters(**about['counters']),
    history=history_lib.from_json(about['history']),
    **{f: about[f] for f in Progress._fields if f not in special},
  )
