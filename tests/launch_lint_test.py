"""Lints launch/: its scripts, its image, and that it names nobody's project."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from absl.testing import absltest, parameterized

import launching
from dapo_jax.parallel import job as job_lib

_LAUNCH = launching.ROOT / 'launch'
_SCRIPTS = sorted(path.name for path in _LAUNCH.glob('*.sh'))


def _linted(program: str, *args: str) -> str:
  """Returns what a linter of the environment says, or skips the test."""
  beside = pathlib.Path(sys.executable).parent / program
  found = str(beside) if beside.exists() else shutil.which(program)
  if not found:
    pytest.skip(f'{program} is not installed')
  done = subprocess.run(
    [found, *args], capture_output=True, text=True, cwd=launching.ROOT
  )
  return done.stdout + done.stderr


class LintTest(parameterized.TestCase):
  @parameterized.parameters(_SCRIPTS)
  def test_shellcheck_says_nothing(self, script):
    self.assertEqual(_linted('shellcheck', f'launch/{script}'), '')

  def test_shellcheck_sees_a_fault(self):
    file = launching.Place(self).path / 'a.sh'
    file.write_text('#!/bin/bash\nrm $1\n')
    self.assertRegex(_linted('shellcheck', str(file)), 'SC2086')

  def test_hadolint_says_nothing(self):
    self.assertEqual(_linted('hadolint', 'launch/Dockerfile'), '')

  def test_hadolint_sees_a_fault(self):
    file = launching.Place(self).path / 'Dockerfile'
    file.write_text('FROM python\n')
    self.assertRegex(_linted('hadolint', '--no-color', str(file)), 'DL3006')

  @parameterized.parameters(_SCRIPTS)
  def test_a_script_is_short_and_strict(self, script):
    lines = (_LAUNCH / script).read_text().splitlines()
    self.assertLessEqual(len(lines), 300)
    self.assertLessEqual(max(map(len, lines)), 80)
    if lines[0].startswith('#!'):
      self.assertEqual(lines[0], '#!/usr/bin/env bash')
      self.assertIn('set -euo pipefail', lines)
    else:
      self.assertRegex(lines[0], '^# shellcheck shell=bash')

  def test_nobodys_project_zone_bucket_or_registry_is_in_a_file(self):
    unwanted = re.compile(
      r'gs://(?!BUCKET)[a-z0-9]|--project=[a-z]|--zone=[a-z]'
      r'|\b(us|europe|asia)-[a-z]+\d|\.pkg\.dev|gcr\.io|docker\.io'
      r'|password|token *=|PRIVATE KEY'
    )
    for path in sorted(_LAUNCH.iterdir()):
      for line in path.read_text().splitlines():
        if "'gs://[a-z0-9]" not in line:  # the rule for a bucket's name
          self.assertNotRegex(line, unwanted, path.name)

  @parameterized.parameters('local.sh', 'tpu_vm.sh', 'gke.sh', 'xpk.sh')
  def test_help_names_every_option(self, script):
    place = launching.Place(self)
    done = place.run(script, '--help')
    self.assertEqual(done.status, 0)
    source = (_LAUNCH / script).read_text()
    cases = source.split('case $1 in')[1].split('esac')[0]
    options = set(re.findall(r'(--[a-z-]+)(?:=\*)?(?: \||\))', cases))
    self.assertContainsSubset({'--dry-run'}, options)
    for option in options - {'--help'}:
      self.assertRegex(done.output, rf'{option}\b')


class ImageTest(absltest.TestCase):
  def test_what_it_copies_is_not_ignored(self):
    kept = (_LAUNCH / 'Dockerfile.dockerignore').read_text().split()
    text = (_LAUNCH / 'Dockerfile').read_text()
    copied = re.findall(r'^COPY --chown=\S+ (.*) \S+$', text, re.MULTILINE)
    names = {name for line in copied for name in line.split()} - {'.'}
    self.assertNotEmpty(names)
    for name in names:
      self.assertIn('!' + name.split('/')[0], kept)
      self.assertTrue((launching.ROOT / name).exists(), name)

  def test_it_runs_as_an_ordinary_user(self):
    text = (_LAUNCH / 'Dockerfile').read_text()
    users = re.findall(r'^USER (.*)$', text, re.MULTILINE)
    self.assertEqual(users[-1:], ['1000'])
    self.assertIn('ENTRYPOINT ["dapo-jax"]', text)


class WordTest(absltest.TestCase):
  def test_job_sh_knows_what_dapo_jax_says_when_a_process_is_missing(self):
    # job.sh takes a ValueError with these words for a fault, not for the
    # user's.
    text = (_LAUNCH / 'job.sh').read_text()
    words = re.findall(r"grep -q '([^']*)'", text)
    self.assertLen(words, 1)
    source = pathlib.Path(job_lib.__file__).read_text()
    self.assertIn(f'the processes {words[0]}', source)


if __name__ == '__main__':
  absltest.main()
