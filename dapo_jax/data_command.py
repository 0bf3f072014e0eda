"""The `data` command: its flags, and what its tasks pass on."""

import os
from collections.abc import Sequence

from absl import flags

from dapo_jax import config as config_lib

USAGE = (
  'dapo-jax data build NAME --from=FILE [--from=FILE2] --out=DIR\n'
  '       dapo-jax data integers --from=FILE --out=FILE [FLAGS]'
)
_TASKS = ('build', 'integers')
# Goes on under the first line of a flag's help, see `main`.
_NEXT_LINE = '\n' + 22 * ' '


def define(flag_values: flags.FlagValues) -> None:
  """Defines the flags of all tasks."""
  flags.DEFINE_multi_string(
    'from',
    [],
    f'The problems: a JSONL or parquet file, or a TFDS{_NEXT_LINE}folder; '
    'build: may be given several times.',
    flag_values=flag_values,
  )
  flags.DEFINE_string(
    'out',
    None,
    f'build: folder to write the data set to;{_NEXT_LINE}'
    'integers: the JSONL file to write, not there yet.',
    flag_values=flag_values,
  )
  flags.DEFINE_enum(
    'conflicts',
    'error',
    ['error', 'drop'],
    f'build: what to do with a problem{_NEXT_LINE}whose rows have several '
    'answers (default error).',
    flag_values=flag_values,
  )
  _define_integers(flag_values)


def _define_integers(flag_values: flags.FlagValues) -> None:
  for name, text in (
    (
      'endpoint',
      f'integers: a chat/completions API, asked for what{_NEXT_LINE}the rule '
      'refuses (default none).',
    ),
    ('model', "integers: the model's name at the endpoint."),
    ('key_env', 'integers: environment variable that holds the key.'),
  ):
    flags.DEFINE_string(name, None, text, flag_values=flag_values)
  flags.DEFINE_enum(
    'ask',
    'refused',
    ['refused', 'all'],
    f'integers: what the model is asked{_NEXT_LINE}(default refused); all = '
    f'also what the rule can do,{_NEXT_LINE}and they must agree.',
    flag_values=flag_values,
  )
  flags.DEFINE_integer(
    'k',
    5,
    f'integers: solutions of each problem that the model{_NEXT_LINE}rewrote, '
    'of which most must agree (default 5).',
    lower_bound=1,
    flag_values=flag_values,
  )
  flags.DEFINE_float(
    'temperature',
    1.0,
    'integers: sampling temperature (default 1.0).',
    lower_bound=0.0,
    flag_values=flag_values,
  )
  flags.DEFINE_integer(
    'max_tokens',
    4096,
    'integers: longest reply, in tokens (default 4096).',
    lower_bound=1,
    flag_values=flag_values,
  )


def run(args: Sequence[str], flag_values: flags.FlagValues) -> None:
  """Runs the task that the first argument names."""
  task, *rest = config_lib.parse_flags(args, flag_values) or ['']
  if task not in _TASKS:
    raise config_lib.ConfigError(
      f'there is no data task {task!r}; there are {" and ".join(_TASKS)}'
    )
  if task == 'build' and len(rest) != 1:
    raise config_lib.ConfigError(
      f'data build takes one NAME of a data set, not {len(rest)}'
    )
  if task == 'integers' and rest:
    raise config_lib.ConfigError(f'unexpected argument {rest[0]!r}')
  sources = [os.path.expanduser(path) for path in flag_values['from'].value]
  if not sources:
    raise config_lib.ConfigError('--from=FILE is required')
  if not flag_values.out:
    raise config_lib.ConfigError('--out is required')
  out = os.path.expanduser(flag_values.out)
  if task == 'build':
    from dapo_jax.data import build

    build.run(rest[0], sources, out, conflicts=flag_values.conflicts)
  else:
    _integers(sources, out, flag_values)


def _integers(
  sources: Sequence[str], out: str, flag_values: flags.FlagValues
) -> None:
  if len(sources) != 1:
    raise config_lib.ConfigError(
      f'data integers takes one --from=FILE, not {len(sources)}'
    )
  from dapo_jax.data import integer_file

  integer_file.run(
    sources[0],
    out,
    model=integer_file.endpoint_model(
      flag_values.endpoint or '',
      flag_values.model or '',
      key_env=flag_values.key_env or '',
      temperature=flag_values.temperature,
      max_tokens=flag_values.max_tokens,
    ),
    votes_count=flag_values.k,
    ask=flag_values.ask,
  )
