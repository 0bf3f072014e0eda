"""Tests that docs/data.md tells the truth: its commands, code and table."""

import json
import pathlib
import re
import shlex
import tempfile

from absl import flags
from absl.testing import absltest, parameterized

import tiny_model
import tiny_run
from dapo_jax import config, data_command
from dapo_jax.data import (
  integer_answers,
  integer_rewriting,
  problem_sets,
  refusals,
  tokenizers,
)
from dapo_jax.training import model_folder

_PAGE = (
  pathlib.Path(__file__).resolve().parents[1] / 'docs/data.md'
).read_text()


def _commands() -> list[list[str]]:
  """Returns the arguments of every `dapo-jax data` command of the page."""
  text = _PAGE.replace('\\\n', ' ')
  text = re.sub(r'\[(.*?)\]', r'\1', text)  # What may be left out.
  found = re.findall(r'^    dapo-jax data (.*)$', text, re.MULTILINE)
  return [shlex.split(line) for line in found]


def _examples() -> list[tuple[str, str, str]]:
  """Returns answer, sentence and integer of the page's table."""
  return re.findall(
    r'^\| `(\S+)` \| ((?:Write|Give) .*?) \| (\d+) \|$', _PAGE, re.MULTILINE
  )


class CommandTest(parameterized.TestCase):
  def test_there_are_commands(self):
    self.assertLen(_commands(), 3)

  @parameterized.parameters(_commands())
  def test_every_command_is_understood(self, *args):
    values = flags.FlagValues()
    data_command.define(values)
    task, *rest = config.parse_flags(list(args), values)
    self.assertEqual(rest, ['NAME'] if task == 'build' else [])


class TableTest(parameterized.TestCase):
  def test_there_are_examples(self):
    self.assertLen(_examples(), 4)

  @parameterized.parameters(_examples())
  def test_every_example_is_what_the_rule_makes(
    self, answer, sentence, integer
  ):
    found = integer_answers.by_rule('What is it?', answer)
    self.assertEndsWith(found.statement, f'\n\n{sentence}')
    self.assertEqual(found.integer, int(integer))


class NamesTest(absltest.TestCase):
  def test_the_data_sets_are_those_that_can_be_built(self):
    [table] = re.findall(r'^\| NAME \|.*\n\|.*\n((?:\|.*\n)+)', _PAGE, re.M)
    counts = {}
    for line in table.splitlines():
      _, names, problems, *_ = line.split('|')
      names = re.findall(r'`(\w+)`', names)
      numbers = [
        int(n.replace(',', '')) for n in re.findall(r'\d[\d,]*\d', problems)
      ]
      # One for each name; what is said besides stands behind them.
      counts |= dict(zip(names, numbers or [None] * len(names), strict=False))
    counts['gsm8k'] = None  # It has two parts, and may be either.
    self.assertEqual(
      counts, {n: s.published_count for n, s in problem_sets.SETS.items()}
    )

  def test_the_reasons_are_all_that_a_line_is_refused_for(self):
    section = _PAGE.partition('### Why a line is refused')[2]
    found = re.findall(r'^\| `(\w+)` \| (.*) \|$', section, re.M)
    self.assertEqual(
      [pair for pair in found if pair[0] != 'refused_for'],
      list(refusals.REASONS.items()),
    )


class OwnSamplerTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def _model_folder(self) -> str:
    """Returns a model of random weights that reads and writes bytes."""
    file, folder = self.folder / 'tokenizer.model', self.folder / 'model'
    # A piece for each of 256 bytes, 4 for what ends and pads, and a few.
    tokenizers.train_sentencepiece(['1+2=3'], file, vocab_size=300)
    tokenizer = tokenizers.load(file)
    size = tokenizer.vocab_size
    model = tiny_model.model(layers=1, vocab_size=size, vocab_rows=size)
    params = tiny_model.params(model)
    model_folder.save(folder, model, params, tokenizer=tokenizer)
    return str(folder)

  def _code(self):
    """Returns the page's code, and its last two lines: how it is called."""
    [code] = re.findall(r'```python\n(.*?)```', _PAGE, re.DOTALL)
    *definitions, model, run = code.strip().split('\n')
    return '\n'.join(definitions), f'{model}\n{run}'

  def test_code_of_the_page_asks_a_model_of_ours(self):
    definitions, call = self._code()
    source, out = (self.folder / name for name in ('in.jsonl', 'out.jsonl'))
    rows = [{'problem': 'Who?', 'answer': 'Eve'}, {'problem': '3', 'answer': 4}]
    source.write_text('\n'.join(map(json.dumps, rows)))
    for old, new in (
      ('problems.jsonl', str(source)),
      ('integers.jsonl', str(out)),
      ('MODEL', self._model_folder()),
      ("'chat'", "'plain'"),
      # Of bytes; the prompt has some 3,000.
      ('prompt_tokens=4096', 'prompt_tokens=4000'),
      ('max_tokens=4096', 'max_tokens=6'),
      ('slots=32', 'slots=2'),
    ):
      self.assertIn(old, call)
      call = call.replace(old, new)
    exec(definitions + '\n' + call, found := {})  # noqa: S102
    refused = self.folder / 'out.jsonl.refused.jsonl'
    self.assertEqual(
      tiny_run.read_jsonl(refused), [rows[0] | {'refused_for': 'reply_form'}]
    )
    self.assertEqual(tiny_run.read_jsonl(out)[0]['answer'], 4)
    self._replies_have_noise_of_their_own(found['model'])

  def _replies_have_noise_of_their_own(self, complete):
    replies = complete(['3+4=?\n'] * 8)
    self.assertLen(replies, 8)
    self.assertGreater(len(set(replies)), 1)
    # And a majority of them is one thing, with an integer or without.
    [outcome] = integer_rewriting.transform(
      [('Who?', 'Eve')], complete, votes_count=3
    )
    self.assertEqual(outcome, (None, 'reply_form'))


if __name__ == '__main__':
  absltest.main()
