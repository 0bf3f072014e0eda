"""The flags of the commands that run without a configuration."""

from absl import flags

# Goes on under the first line of a flag's help, see `main`.
_NEXT_LINE = '\n' + 22 * ' '


def define_sample(flag_values: flags.FlagValues) -> None:
  """Defines the flags of `sample`."""
  flags.DEFINE_string(
    'model',
    None,
    "A model's folder, or the workdir of a finished run.",
    flag_values=flag_values,
  )
  flags.DEFINE_enum(
    'template',
    'plain',
    ['plain', 'dapo', 'boxed', 'chat', 'chat_dapo', 'chat_boxed'],
    f'Prompt form{_NEXT_LINE}(default plain).',
    flag_values=flag_values,
  )
  flags.DEFINE_float(
    'temperature',
    1.0,
    'Sampling temperature, 0 = greedy (default 1.0).',
    lower_bound=0.0,
    flag_values=flag_values,
  )
  flags.DEFINE_integer(
    'top_k',
    0,
    'Draw from the so many likeliest tokens (default 0, all).',
    lower_bound=-1,
    flag_values=flag_values,
  )
  for name, default, text in (
    ('top_p', 1.0, 'Draw from the fewest with this probability'),
    ('min_p', 0.0, "Least probability, over the likeliest's"),
  ):
    flags.DEFINE_float(
      name,
      default,
      f'{text} (default {default:g}).',
      lower_bound=0.0,
      upper_bound=1.0,
      flag_values=flag_values,
    )
  flags.DEFINE_integer(
    'max_tokens',
    256,
    'Longest response, in tokens (default 256).',
    lower_bound=1,
    flag_values=flag_values,
  )
  flags.DEFINE_integer(
    'seed',
    0,
    'Seed of the noise (default 0).',
    lower_bound=0,
    flag_values=flag_values,
  )


def define_serve(flag_values: flags.FlagValues) -> None:
  """Defines the flags of `serve`: those of `sample` and the server's."""
  define_sample(flag_values)
  flags.DEFINE_integer(
    'port',
    0,
    'Port to listen on, 0 = any free one (default 0).',
    lower_bound=0,
    upper_bound=65535,
    flag_values=flag_values,
  )
  flags.DEFINE_string(
    'host',
    '127.0.0.1',
    f'Interface to listen on (default 127.0.0.1, this{_NEXT_LINE}machine '
    f'alone). There is no authentication and no{_NEXT_LINE}encryption: '
    'whoever can reach it can use it.',
    flag_values=flag_values,
  )
  flags.DEFINE_integer(
    'slots',
    8,
    'Responses decoded at a time (default 8).',
    lower_bound=1,
    flag_values=flag_values,
  )
  flags.DEFINE_integer(
    'max_prompt_tokens',
    None,
    f'Longest prompt, in tokens (default 1024, or what{_NEXT_LINE}the '
    'context of the model leaves).',
    lower_bound=1,
    flag_values=flag_values,
  )


def define_none(flag_values: flags.FlagValues) -> None:
  """Defines nothing: the command has arguments only."""
  del flag_values


def define_import(flag_values: flags.FlagValues) -> None:
  """Defines the flags of `import-hf`."""
  flags.DEFINE_bool(
    'allow_download',
    False,
    'HF_DIR may be a hub id (OWNER/NAME) or a gs:// folder.',
    flag_values=flag_values,
  )


def define_export(flag_values: flags.FlagValues) -> None:
  """Defines the flags of `export-hf`."""
  flags.DEFINE_enum(
    'format',
    'hf',
    ['hf', 'orbax'],
    'Hugging Face or Orbax weights (default hf).',
    flag_values=flag_values,
  )
  flags.DEFINE_enum(
    'dtype',
    'f32',
    ['f32', 'bf16'],
    'Type of the safetensors (default f32).',
    flag_values=flag_values,
  )
  flags.DEFINE_string(
    'max_shard_size',
    '5GB',
    'Most bytes of a weight file (default 5GB).',
    flag_values=flag_values,
  )
  flags.DEFINE_string(
    'model_path',
    None,
    "The run's config.model.path, if that folder moved.",
    flag_values=flag_values,
  )
