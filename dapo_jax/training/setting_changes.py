"""What changed between the settings of a saved run and today's."""

from collections.abc import Iterator, Mapping
from typing import Any

from configs import base

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
  'sft.lr',
  'sft.steps',
  'sft.eval_every_steps',
  'sft.stop_accuracy',
  'model.allow_download',
  'model.remat',
  'model.attention',
  'model.logits_chunk_tokens',
  'learner.pack_tokens',
  'learner.share_prompts',
  'learner.micro_batch_rows',
  'filter.max_rounds',
  'filter.on_limit',
  'reward.wait_s',
  'reward.verify_',
  # Compared by what is in them, see `training.origin`.
  'tokenizer.path',
  'model.path',
  'optim.max_skipped_updates',
)


def with_defaults(saved: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a saved configuration with the keys that came after it.

  They have their defaults in configs/base.py, which do what was done before
  there was the key; `FORMAT_VERSION` is counted up where one does not.
  """
  return _filled(saved, base.get_config().to_dict())


def between(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
  """Returns `key: old -> new` of settings that changed and may.

  A key that only one side has counts as a change.

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
  show = lambda side, k: repr(side[k]) if k in side else 'no such key'
  text = lambda k: f'{k}: {show(old, k)} -> {show(new, k)}'
  fixed = [k for k in changed if not k.startswith(CHANGEABLE)]
  if fixed:
    raise ValueError(
      'this work directory holds a run with other settings '
      f'({"; ".join(map(text, fixed))}); give the old values, or another '
      '--workdir'
    )
  return [text(k) for k in changed]


def _filled(saved: Mapping[str, Any], defaults: Mapping[str, Any]):
  result = dict(saved)
  for key, default in defaults.items():
    if key not in saved:
      result[key] = default
    elif isinstance(default, Mapping) and isinstance(saved[key], Mapping):
      result[key] = _filled(saved[key], default)
  return result


def _leaves(
  tree: Mapping[str, Any], prefix: str = ''
) -> Iterator[tuple[str, Any]]:
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
