"""The configuration that a command line asks for, checked and frozen.

`--config=FILE[:ARG]` names a Python file whose `get_config([ARG])` returns the
configuration, ARG the variant of it (`configs/variants.py`);
`--config.SECTION.KEY=VALUE` changes one key. Files and values are read by
`ml_collections.config_flags`. Every fault is a ConfigError of one
line, raised before a device is touched: this module imports no jax.
"""

import ast
import difflib
import glob
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import ml_collections
from absl import flags
from ml_collections import config_flags

from configs import base, variants
from dapo_jax import config_fault, config_keys, config_rules

ConfigError = config_fault.ConfigError

_PROGRAM = 'dapo-jax'  # flags are parsed with the program's name before them
_OVERRIDE = re.compile(r'--?(no)?config\.([^=]*)(?:=(.*))?', re.DOTALL)
_FILE = re.compile(r'--?config(?:=(.*))?', re.DOTALL)


def load(
  file: str, overrides: Sequence[str] = ()
) -> ml_collections.FrozenConfigDict:
  """Returns the configuration of a file with overrides, checked and frozen.

  Args:
    file: the path of the configuration file, `FILE` or `FILE:ARG`.
    overrides: changes as on the command line, `--config.optim.lr=1e-3`.

  Raises:
    ConfigError: the file, a key, a value or a combination of values is wrong.
  """
  config, rest = parse([f'--config={file}', *overrides], flags.FlagValues())
  if rest:
    raise ConfigError(f'{rest[0]!r} does not read --config.KEY=VALUE')
  return config


def define_flag(flag_values: flags.FlagValues) -> None:
  """Defines `--config` in `flag_values`."""
  config_flags.DEFINE_config_file(
    'config',
    help_string='Python file with the configuration, FILE or FILE:VARIANT.',
    flag_values=flag_values,
    sys_argv=[],
  )


def parse(
  args: Sequence[str],
  flag_values: flags.FlagValues,
  *,
  reads_problems: bool = True,
) -> tuple[ml_collections.FrozenConfigDict, list[str]]:
  """Returns the configuration that a command line asks for, and what is left.

  Args:
    args: the arguments after the command's name.
    flag_values: the command's other flags; they are set from `args`.
    reads_problems: whether the command does; else none have to be named.

  Returns:
    The configuration, checked and frozen, and the arguments that are no flags.

  Raises:
    ConfigError: an unknown flag or key, a wrong value, a faulty file.
  """
  if 'config' not in flag_values:
    define_flag(flag_values)
  overrides, args = _split_overrides(args)
  file, args = _split_file(args)
  rest = parse_flags(args, flag_values)
  if not file:
    raise ConfigError('--config=FILE is required, such as configs/demo.py')
  config = _read_file(file, flag_values)
  for path, text in overrides:
    _override(config, path, text)
  if not reads_problems:
    _name_problems(config)
  config_rules.validate(config)
  return ml_collections.FrozenConfigDict(config), rest


def _name_problems(config: ml_collections.ConfigDict) -> None:
  """Names problems that nobody reads where none are named."""
  if not config.data.source and not config.data.mixture:
    config.data.source = 'no data.source is needed'
  config.eval.source = config.eval.source or 'no eval.source is needed'


def parse_flags(
  args: Sequence[str], flag_values: flags.FlagValues
) -> list[str]:
  """Sets `flag_values` from `args` and returns the arguments that are no flags.

  Raises:
    ConfigError: an unknown flag or a wrong value.
  """
  flag_values.set_gnu_getopt(True)  # flags may follow other arguments
  try:
    return flag_values([_PROGRAM, *_with_underscores(args)])[1:]
  except flags.Error as error:
    raise ConfigError(_one_line(error)) from None


def _with_underscores(args: Sequence[str]) -> Iterator[str]:
  """Yields the arguments, with --max-shard-size as --max_shard_size."""
  ended = False
  for arg in args:
    ended |= arg == '--'
    name, equals, value = arg.partition('=')
    if name.startswith('--') and not ended:
      name = '--' + name[2:].replace('-', '_')
    yield name + equals + value


def _split_overrides(
  args: Sequence[str],
) -> tuple[list[tuple[str, str]], list[str]]:
  """Returns path and text of every `--config.PATH=TEXT`, and the other args."""
  overrides, rest = [], []
  remaining = iter(args)
  for arg in remaining:
    match = _OVERRIDE.fullmatch(arg)
    if match:
      overrides.append(_path_and_text(match, remaining))
    else:
      rest.append(arg)
    if arg == '--':  # what follows it is no flag
      rest += remaining
  return overrides, rest


def _path_and_text(
  match: re.Match[str], remaining: Iterator[str]
) -> tuple[str, str]:
  """Returns path and text of an override, which may be the next argument."""
  negated, path, text = match.groups()
  keys = config_keys.known_keys()
  if path not in keys:
    raise ConfigError(config_keys.no_such_key(path, prefix='--config.'))
  is_bool = keys[path].kind is bool
  if negated and (text is not None or not is_bool):
    raise ConfigError(
      f'--noconfig.{path}: write --config.{path}=VALUE, {keys[path]}'
    )
  if text is None and is_bool:
    text = 'false' if negated else 'true'
  elif text is None:
    text = next(remaining, None)
  if text is None:
    raise ConfigError(f'--config.{path} needs a value, {keys[path]}')
  return path, text


def _split_file(args: Sequence[str]) -> tuple[str, list[str]]:
  """Returns the value of the last `--config`, or '', and the other args."""
  file, rest = '', []
  remaining = iter(args)
  for arg in remaining:
    match = _FILE.fullmatch(arg)
    if match:
      file = next(remaining, '') if match[1] is None else match[1]
    else:
      rest.append(arg)
    if arg == '--':
      rest += remaining
  return file, rest


def _override(config: ml_collections.ConfigDict, path: str, text: str) -> None:
  """Sets one key of `config` from the text of a flag."""
  key = config_keys.known_keys()[path]
  if key.can_be_none and text.lower() == 'none':
    config.update_from_flattened_dict({path: None})
    return
  flag_values = flags.FlagValues()
  arg = f'--config.{path}={text}'
  config_flags.DEFINE_config_dict(
    'config', config, flag_values=flag_values, sys_argv=[arg]
  )
  try:
    flag_values([_PROGRAM, arg])
    fits = key.accepts(config[path])
  except flags.Error:
    fits = False
  # What does not read as a tuple, config_flags takes for the one text in it.
  if key.kind is tuple:
    fits = key.accepts(_literal(text))
  if not fits:
    raise ConfigError(f'--config.{path} must be {key}, not {text!r}')


def _literal(text: str) -> Any:
  """Returns the value that a Python literal has, or `text` if it is none."""
  try:
    return ast.literal_eval(text)
  except (SyntaxError, ValueError):
    return text


def _read_file(
  file: str, flag_values: flags.FlagValues
) -> ml_collections.ConfigDict:
  """Returns `base.get_config()` with the values that a file sets."""
  path = file.partition(':')[0]
  if not os.path.isfile(path):
    near = difflib.get_close_matches(path, glob.glob('configs/*.py'), n=1)
    hint = f'; the nearest is {near[0]}' if near else ''
    raise ConfigError(f'--config={file}: there is no file {path!r}{hint}')
  try:
    flag_values([_PROGRAM, f'--config={file}'])
    if not hasattr(flag_values.config, 'items'):
      raise TypeError('get_config() must return a ConfigDict')
    leaves = dict(config_keys.leaves(flag_values.config))
  except Exception as error:  # the file is a program: anything can happen
    raise ConfigError(_file_fault(file, error)) from None
  # Copied into the defaults, so that types are base.py's even where a file
  # builds a tree of its own.
  config, keys = base.get_config(), config_keys.known_keys()
  for name, value in leaves.items():
    if name not in keys:
      raise ConfigError(f'{path} sets {config_keys.no_such_key(name)}')
    if not keys[name].accepts(value):
      raise ConfigError(
        f'{path} sets {name} to {value!r}; it must be {keys[name]}'
      )
    config.update_from_flattened_dict({name: value})
  return config


def _file_fault(file: str, error: BaseException) -> str:
  """Returns one line on why a configuration file could not be run."""
  path = file.partition(':')[0]
  # config_flags and absl wrap what the file raised and keep it as context.
  chain = [error]
  while cause := chain[-1].__cause__ or chain[-1].__context__:
    chain.append(cause)
  # The innermost: config_flags raises what it wraps anew, of the same type.
  if isinstance(chain[-1], variants.UnknownVariantError):
    return f'--config={file}: {chain[-1]}'
  if fault := _variant_fault(file, str(chain[-1])):
    return fault
  for error in chain:
    if isinstance(error, SyntaxError):
      return f'{error.filename}, line {error.lineno}: {error.msg}'
    frames = traceback.extract_tb(error.__traceback__)
    depths = [i for i, frame in enumerate(frames) if frame.filename == path]
    if depths:
      line = frames[depths[-1]].line
      reason = f'{type(error).__name__}: {_one_line(error)}'
      if [f.name for f in frames[depths[-1] + 1 :]][:1] == ['__setattr__']:
        reason = _assignment_fault(_assigned_path(line)) or reason
      return f'{path}, line {frames[depths[-1]].lineno}, `{line}`: {reason}'
  return f'{path}: {type(error).__name__}: {_one_line(error)}'


def _variant_fault(file: str, reason: str) -> str:
  """Returns what is wrong with the ARG of FILE:ARG, or '' if nothing is."""
  path = file.partition(':')[0]
  if reason.startswith('get_config() takes '):
    return f'--config={file}: this file has no variants; write --config={path}'
  if reason.startswith('get_config() missing '):
    return (
      f'--config={file}: this file needs a variant; write '
      f'--config={path}:VARIANT'
    )
  return ''


def _assignment_fault(path: str) -> str:
  """Returns why a value can't be assigned to a path, or '' if unknown."""
  key = config_keys.known_keys().get(path)
  if key:
    return f'it must be {key}'
  return config_keys.no_such_key(path) if '.' in path else ''


def _assigned_path(line: str) -> str:
  """Returns the path `a.b` that a line `name.a.b = ...` assigns to, or ''."""
  try:
    target = ast.parse(line).body[0].targets[0]
  except (SyntaxError, AttributeError, IndexError):
    return ''
  return ast.unparse(target).partition('.')[2]


def _one_line(error: BaseException) -> str:
  """Returns an error's text without line breaks, escaped ones included."""
  return ' '.join(str(error).replace('\\n', ' ').split())
