"""Tests that the README tells the truth: commands, keys, links and figures."""

import contextlib
import io
import pathlib
import re
import shlex
import tempfile

from absl import flags
from absl.testing import absltest, parameterized

from dapo_jax import config, config_keys, main

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_README = (_ROOT / 'README.md').read_text()
# A run that takes seconds: it shows that the commands work, not that they
# train well.
_SMALL = (
  '--config.model.layers=1',
  '--config.model.embed_dim=32',
  '--config.sft.steps=2',
  '--config.sft.examples_per_step=8',
  '--config.rollout.prompts_per_step=2',
  '--config.rollout.responses_per_prompt=2',
  '--config.learner.minibatch_prompts=2',
  '--config.filter.max_rounds=1',
  '--config.filter.on_limit=train_partial',
  '--config.sampler.slots=8',
  '--config.eval.prompts=4',
  '--config.eval.samples_per_prompt=2',
  '--config.train.steps=1',
)


def _commands() -> list[list[str]]:
  """Returns the arguments of every `dapo-jax` command of the README."""
  text = _README.replace('\\\n', ' ')
  found = re.findall(r'^    (?:.*\s|\S*/)?dapo-jax (.*)$', text, re.MULTILINE)
  return [shlex.split(line, comments=True) for line in found]


def _flag(args: list[str], name: str) -> str:
  """Returns the value of `--name=value`; '' where it is not given."""
  return next((a.split('=')[1] for a in args if a.startswith(f'{name}=')), '')


class CommandTest(parameterized.TestCase):
  def test_there_are_commands(self):
    names = {args[0] for args in _commands()}
    self.assertEqual(names, set(main._COMMANDS))

  @parameterized.parameters(_commands())
  def test_every_command_is_understood(self, *args):
    name, *rest = args
    values = flags.FlagValues()
    main._COMMANDS[name].define_flags(values)
    positional = {
      'sample': 1,
      'serve': 0,
      'fetch': 2,
      'import-hf': 2,
      'export-hf': 2,
      'data': {'build': 2, 'integers': 1}.get(rest[0]),
    }
    if name in positional:
      left = config.parse_flags(rest, values)
      self.assertLen(left, positional[name])
      return
    file = _ROOT / 'configs/demo.py'
    rest = [a.replace('=FILE', f'={file}') for a in rest]
    rest = [a.replace('=configs/', f'={_ROOT}/configs/') for a in rest]
    _, left = config.parse(rest, values)
    self.assertEmpty(left)

  def test_make_targets_exist(self):
    makefile = (_ROOT / 'Makefile').read_text()
    targets = set(re.findall(r'^    make ([a-z-]+)', _README, re.MULTILINE))
    self.assertContainsSubset({'demo', 'test'}, targets)
    for target in targets | {'test-slow'}:
      self.assertRegex(makefile, rf'(?m)^{target}:')

  def test_make_demo_runs_what_the_config_says(self):
    recipe = (_ROOT / 'Makefile').read_text().replace('\\\n', ' ')
    text = (_ROOT / 'configs/demo.py').read_text().replace('\\\n', ' ')
    ran = re.findall(r'\$\(BIN\)/(dapo-jax .*)', recipe)
    said = re.findall(r'^  (dapo-jax .*)', text, re.MULTILINE)
    self.assertEqual([c.split() for c in ran], [c.split() for c in said])
    self.assertLen(ran, 2)

  def test_the_four_commands_run(self):
    demo = f'--config={_ROOT}/configs/demo.py'
    with tempfile.TemporaryDirectory() as folder:
      model = f'--config.model.path={folder}/sft/model'
      for args in (
        ('sft', demo, f'--workdir={folder}/sft', *_SMALL),
        ('train', demo, f'--workdir={folder}/rl', model, *_SMALL),
        ('eval', demo, f'--workdir={folder}/rl', model, *_SMALL),
        ('sample', f'--model={folder}/rl', '--max_tokens=4', '47+38=?'),
      ):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
          self.assertEqual(main.main(args), 0)
        self.assertNotEmpty(out.getvalue())
      files = {p.name for p in pathlib.Path(folder, 'rl').iterdir()}
    self.assertContainsSubset(
      {'metrics.jsonl', 'samples.jsonl', 'checkpoints', 'model', 'eval.json'},
      files,
    )


class TextTest(absltest.TestCase):
  def test_every_key_exists(self):
    known = config_keys.known_keys()
    sections = '|'.join({key.split('.')[0] for key in known})
    keys = set(re.findall(rf'`((?:{sections})\.[a-z_.]+)`', _README))
    self.assertGreater(len(keys), 8)
    self.assertEmpty(keys - set(known))

  def test_every_link_leads_to_a_file(self):
    for target in re.findall(r'\]\(([^)]+)\)', _README):
      if not target.startswith('https://'):
        self.assertTrue((_ROOT / target).is_file(), target)

  def test_every_folder_is_in_the_table_of_layers(self):
    folders = {
      f'{p.parent.name}/' for p in _ROOT.glob('dapo_jax/*/__init__.py')
    }
    rows = set(re.findall(r'^\| `(\w+/)` \|', _README, re.MULTILINE))
    self.assertEqual(rows, folders)

  def test_the_demo_reached_what_is_promised(self):
    table = _README.split('<!-- demo -->')[1].split('<!-- /demo -->')[0]
    before, after = map(
      float,
      re.findall(r'accuracy: ([\d.]+)% before, ([\d.]+)% after', table)[0],
    )
    self.assertGreaterEqual(after, 90.0)
    self.assertGreaterEqual(after - before, 40.0)
    self.assertBetween(before, 30.0, 55.0)


if __name__ == '__main__':
  absltest.main()
