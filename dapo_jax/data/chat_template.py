"""The chat template of a model: its own form of a conversation as text.

Host only. Such a template is a jinja2 program that comes with the tokenizer,
from whoever published it: it runs in a sandbox.
"""

import datetime
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2
from jinja2 import ext, sandbox

from dapo_jax.data import records, tokenizer_config

_FILE = 'chat_template.jinja'
_KINDS = ('bos', 'eos', 'pad', 'unk', 'sep', 'cls', 'mask')


def render(
  messages: Sequence[records.Message], folder: str | pathlib.Path
) -> str:
  """Returns a conversation as the model of a folder was trained to read it.

  It ends where the assistant's turn begins. The template is that of
  chat_template.jinja, else of `chat_template` in tokenizer_config.json, where
  of several the one named default is meant.

  Args:
    messages: the conversation up to the response.
    folder: has the tokenizer.

  Raises:
    ValueError: there is no template, it is broken, or it refuses the
      conversation.
  """
  folder = pathlib.Path(folder)
  source = _source(folder)
  if not source:
    raise ValueError(
      f'the tokenizer in {folder} has no chat template, neither {_FILE} nor '
      'chat_template in tokenizer_config.json; change --config.data.template '
      'or --config.tokenizer.path'
    )
  texts = {f'{k}_token': tokenizer_config.token_text(folder, k) for k in _KINDS}
  try:
    return (
      _environment()
      .from_string(source)
      .render(
        messages=[message._asdict() for message in messages],
        add_generation_prompt=True,
        # What templates ask after even where there is none.
        tools=None,
        documents=None,
        **{name: text for name, text in texts.items() if text},
      )
    )
  except Exception as error:  # The template is a program of its own.
    raise ValueError(
      f'the chat template in {folder} cannot render the conversation '
      f'{[m.role for m in messages]}: {error}; change --config.data.template '
      'or the data'
    ) from error


def _source(folder: pathlib.Path) -> str:
  """Returns the template of a folder; '' if there is none."""
  if (folder / _FILE).is_file():
    return (folder / _FILE).read_text('utf-8')
  found = tokenizer_config.json_object(folder / 'tokenizer_config.json').get(
    'chat_template'
  )
  if isinstance(found, list):
    found = {entry['name']: entry['template'] for entry in found}.get('default')
  return found or ''


class _Generation(ext.Extension):
  """`{% generation %}`, which marks what an assistant said: passed through."""

  tags = {'generation'}

  def parse(self, parser):
    next(parser.stream)
    return parser.parse_statements(('name:endgeneration',), drop_needle=True)


def _environment() -> sandbox.ImmutableSandboxedEnvironment:
  """Returns jinja2 as chat templates expect it to be set up."""
  environment = sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[_Generation, ext.loopcontrols],
  )
  environment.filters['tojson'] = _to_json
  environment.globals['raise_exception'] = _raise_exception
  environment.globals['strftime_now'] = _strftime_now
  return environment


def _to_json(value: Any, **options) -> str:
  # jinja2's own escapes what means something in HTML.
  return json.dumps(value, **{'ensure_ascii': False} | options)


def _raise_exception(message: str) -> None:
  raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
  return datetime.datetime.now().strftime(form)
