"""Tests that docs/tpu.md names scripts, options, keys and links that exist."""

import pathlib
import re
import shlex
import subprocess

from absl import flags
from absl.testing import absltest, parameterized

from dapo_jax import config, config_keys, main

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PAGE = (_ROOT / 'docs/tpu.md').read_text()


def _launches() -> list[list[str]]:
  """Returns the commands of launch/ in the page, as words."""
  text = _PAGE.replace('\\\n', ' ')
  found = re.findall(r'^ {4}(launch/\w+\.sh .*)$', text, re.MULTILINE)
  return [shlex.split(line) for line in found]


class LaunchTest(parameterized.TestCase):
  def test_there_are_commands(self):
    scripts = {words[0] for words in _launches()}
    self.assertEqual(
      scripts, {'launch/tpu_vm.sh', 'launch/gke.sh', 'launch/xpk.sh'}
    )

  @parameterized.parameters(_launches())
  def test_a_command_is_understood_and_so_is_its_job(self, *words):
    place = {
      'BUCKET': 'some-bucket',
      'CLUSTER': 'some-cluster',
      'IMAGE': 'some/image',
      'NAME': 'some',
    }
    words = [
      re.sub('[A-Z]{4,}', lambda m: place[m[0]], w) if w[:2] == '--' else w
      for w in words
      if w != '...'
    ]
    done = subprocess.run(
      ['bash', *words[:1], '--dry-run', *words[1:]],
      cwd=_ROOT,
      capture_output=True,
      text=True,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    if '--' not in words:
      return
    name, *job = words[words.index('--') + 1 :]
    if not job:
      return
    values = flags.FlagValues()
    main._COMMANDS[name].define_flags(values)
    job = [a.replace('=configs/', f'={_ROOT}/configs/') for a in job]
    _, left = config.parse([*job, '--workdir=x', '--distributed'], values)
    self.assertEmpty(left)


class TextTest(absltest.TestCase):
  def test_every_script_is_told_of(self):
    told = set(re.findall(r'^\| \[(launch/\w+\.sh)\]', _PAGE, re.MULTILINE))
    programs = {
      f'launch/{path.name}'
      for path in (_ROOT / 'launch').glob('*.sh')
      if '--dry-run' in path.read_text()
    }
    self.assertEqual(told, programs)

  def test_every_option_in_the_text_is_one_of_a_script(self):
    scripts = ''.join(
      path.read_text() for path in (_ROOT / 'launch').glob('*.sh')
    )
    for option in re.findall(r'`(--[a-z]+(?:-[a-z]+)*)', _PAGE):
      if not option.startswith('--config'):
        self.assertIn(option, scripts)

  def test_every_key_exists(self):
    known = config_keys.known_keys()
    sections = '|'.join({key.split('.')[0] for key in known})
    keys = set(re.findall(rf'`(?:--config\.)?((?:{sections})\.[a-z_]+)', _PAGE))
    self.assertGreater(len(keys), 2)
    self.assertEmpty(keys - set(known))

  def test_every_link_leads_to_a_file(self):
    links = re.findall(r'\]\(([^)]+)\)', _PAGE)
    ours = [link for link in links if not link.startswith('https://')]
    self.assertGreater(len(ours), 5)
    for link in ours:
      self.assertTrue((_ROOT / 'docs' / link).resolve().is_file(), link)


if __name__ == '__main__':
  absltest.main()
