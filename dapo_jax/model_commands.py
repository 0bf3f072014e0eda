"""The commands on models: sample, serve, fetch, import-hf and export-hf.

Their flags, and what they pass on. What is heavy to import is imported by the
command that needs it.
"""

import os
from collections.abc import Sequence

from absl import flags

from dapo_jax import config as config_lib

# Goes on under the first line of a flag's help, see `main`.
_NEXT_LINE = '\n' + 22 * ' '


def define_sample(flag_values: flags.FlagValues) -> None:
  """Defines the flags of `sample`."""
  flags.DEFINE_string(
    'model',
    None,
    "A model's folder, or a run's workdir or checkpoint.",
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


def sample(args: Sequence[str], flag_values: flags.FlagValues) -> None:
  """Prints a response of a model."""
  prompts = config_lib.parse_flags(args, flag_values)
  if len(prompts) != 1:
    raise config_lib.ConfigError(
      f'sample takes one prompt, in quotes, not {len(prompts)}'
    )
  model = _model(flag_values)
  from dapo_jax.training import stopping

  with stopping.at_once():
    from dapo_jax.sampling import token_choice
    from dapo_jax.training import completion

    completion.run(
      model,
      prompts[0],
      template=flag_values.template,
      choice=token_choice.Choice(
        temperature=flag_values.temperature,
        top_k=flag_values.top_k,
        top_p=flag_values.top_p,
        min_p=flag_values.min_p,
      ),
      max_tokens=flag_values.max_tokens,
      seed=flag_values.seed,
    )


def _model(flag_values: flags.FlagValues) -> str:
  """Returns the folder that --model names."""
  model = flag_values.model
  if not model or not os.path.isdir(model):
    raise config_lib.ConfigError(
      f'--model ({model}) must be a folder with a model'
    )
  return model


def serve(args: Sequence[str], flag_values: flags.FlagValues) -> None:
  """Answers requests until it is stopped."""
  rest = config_lib.parse_flags(args, flag_values)
  if rest:
    raise config_lib.ConfigError(f'unexpected argument {rest[0]!r}')
  model = _model(flag_values)
  from dapo_jax.training import serving

  serving.run(
    model,
    host=flag_values.host,
    port=flag_values.port,
    template=flag_values.template,
    temperature=flag_values.temperature,
    seed=flag_values.seed,
    sizes=serving.Sizes(
      flag_values.slots, flag_values.max_prompt_tokens, flag_values.max_tokens
    ),
  )


def _positional(
  args: Sequence[str], flag_values: flags.FlagValues, *names: str
) -> list[str]:
  """Returns the arguments that are no flags, one for each name."""
  found = config_lib.parse_flags(args, flag_values)
  if len(found) != len(names):
    raise config_lib.ConfigError(
      f'give {" and ".join(names)}, {len(names)} arguments, not {len(found)}'
    )
  return found


def fetch(args: Sequence[str], flag_values: flags.FlagValues) -> None:
  """Downloads a model."""
  name, folder = _positional(args, flag_values, 'NAME', 'DIR')
  from dapo_jax.training import fetch

  fetch.run(name, folder)


def import_hf(args: Sequence[str], flag_values: flags.FlagValues) -> None:
  """Makes an Orbax folder of a Hugging Face folder."""
  source, out = _positional(args, flag_values, 'HF_DIR', 'OUT')
  from dapo_jax.training import transfer

  transfer.import_hf(source, out, allow_download=flag_values.allow_download)


def export_hf(args: Sequence[str], flag_values: flags.FlagValues) -> None:
  """Writes a policy as a folder of its own."""
  source, out = _positional(args, flag_values, 'CHECKPOINT', 'OUT')
  from dapo_jax.training import transfer

  transfer.export_hf(
    source,
    out,
    layout=flag_values['format'].value,
    dtype=flag_values.dtype,
    max_shard_size=flag_values.max_shard_size,
    model_path=flag_values.model_path,
  )
