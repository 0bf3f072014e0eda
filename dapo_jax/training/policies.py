"""The model that a command is given: a folder's, or a run's newest policy."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_collections
from etils import epath

from dapo_jax.data import tokenizers
from dapo_jax.model import decoder
from dapo_jax.training import (
  assemble,
  checkpoint,
  checkpoint_folder,
  model_folder,
  resuming,
)


class Policy(NamedTuple):
  """A model whose weights are still to be read."""

  name: str  # what it is called in a message
  tokenizer: tokenizers.ChatTokenizer
  model: decoder.Abstract
  # Returns the parameters, placed as the shardings say.
  load: Callable[[Any], decoder.Params]


class _Run(NamedTuple):
  """A run whose policy is meant."""

  workdir: epath.Path
  folder: epath.Path  # of its checkpoints
  step: int | None  # None = the newest

  def is_there(self) -> bool:
    """Says whether there is a checkpoint of it, or one was named."""
    named = self.step is not None
    return named or bool(checkpoint_folder.look(self.folder).whole)


@contextlib.contextmanager
def opened(source: str | os.PathLike) -> Iterator[Policy]:
  """Yields the model to sample from, to be used within.

  Args:
    source: a model's folder, or a work directory; without one in it, as long as
      it is trained, the newest checkpoint is meant. Or what `of_run` takes.

  Raises:
    ValueError: there is none, or what belongs to it is missing.
  """
  folder = pathlib.Path(source)
  for place in (folder, folder / 'model'):
    if (place / 'config.json').is_file():
      yield of_folder(place)
      return
  if not any(run.is_there() for run in _runs(source)):
    raise ValueError(
      f'there is no model in {folder}: neither config.json nor '
      'model/config.json nor a whole checkpoint; --model must be a '
      "model's folder, a run's work directory or one of its checkpoints"
    )
  with of_run(source) as policy:
    yield policy


def of_folder(folder: pathlib.Path) -> Policy:
  """Returns the model of its folder."""
  tokenizer = tokenizers.load(folder)
  model = decoder.abstract(
    model_folder.spec(folder, tokenizer), compute_dtype='float32', remat='none'
  )
  load = lambda where: model_folder.load(folder, model, shardings=where)
  return Policy(str(folder), tokenizer, model, load)


@contextlib.contextmanager
def of_run(
  source: str | os.PathLike, *, model_path: str | None = None
) -> Iterator[Policy]:
  """Yields the policy of a run's checkpoint, to be used within.

  Args:
    source: a work directory or a folder of checkpoints, a bucket's too (the
      newest is meant), or one of its checkpoints (WORKDIR/checkpoints/STEP).
    model_path: the folder that the run started from, if it is no longer where
      its configuration says.

  Raises:
    ValueError: there is none, or what belongs to it is missing.
  """
  run = _find_run(source)
  workdir, step = pathlib.Path(run.workdir), run.step
  # Holds a tokenizer that only the checkpoint has.
  with (
    tempfile.TemporaryDirectory() as scratch,
    checkpoint.open_store(
      workdir, keep=None, folder=os.fspath(run.folder), read_only=True
    ) as store,
  ):
    step = store.latest_step() if step is None else step
    config = ml_collections.ConfigDict(store.saved_config(step))
    # What is downloaded is in the work directory already.
    config.model.allow_download = False
    config.model.compute_dtype = 'float32'
    config.model.remat = 'none'
    if model_path:
      config.model.path = model_path
    config = ml_collections.FrozenConfigDict(config)
    saved = store.saved_origin(step)
    if saved and saved.tokenizer_file:
      workdir = pathlib.Path(scratch)
      resuming.bring_tokenizer(config, workdir, saved)
    tokenizer, model = assemble.saved_model(config, workdir)
    store.check_model(tokenizer, model.spec, step=step)

    def load(where: Any) -> decoder.Params:
      return store.restore_params(model.shapes, where, step=step)[0]

    yield Policy(f'{run.folder / str(step)}', tokenizer, model, load)


def _find_run(source: str | os.PathLike) -> _Run:
  """Returns the run that `source` means; ValueError where there is none."""
  runs = _runs(source)
  for run in runs:
    if run.is_there():
      return run
  places = ' nor '.join(f'a whole one in {run.folder}' for run in runs)
  raise ValueError(
    f'there is no checkpoint in {source}: neither config.json nor {places}; '
    'name a work directory, one of its checkpoints '
    '(WORKDIR/checkpoints/STEP), the folder that --config.checkpoint.folder '
    "named, or a model's folder"
  )


def _runs(source: str | os.PathLike) -> list[_Run]:
  """Returns what `source` may mean; ValueError for broken settings."""
  folder = checkpoint_folder.locate('', os.fspath(source))
  if folder.name.isdigit():
    return [_Run(folder.parent.parent, folder.parent, int(folder.name))]
  named = checkpoint_folder.named(folder)
  runs = [_Run(folder, checkpoint_folder.locate(folder, named), None)]
  if not named:
    runs.append(_Run(folder.parent, folder, None))
  return runs
