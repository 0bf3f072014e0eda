"""Tests that docs/ names functions, tests, keys and files that exist.

Of docs/fidelity.md and docs/algorithms.md.
"""

import ast
import pathlib
import re

from absl.testing import absltest, parameterized

from dapo_jax import config_keys, config_rules
from dapo_jax.monitor import catalogue

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PAGE = (_ROOT / 'docs/fidelity.md').read_text()
_ALGORITHMS = (_ROOT / 'docs/algorithms.md').read_text()
_PAGES = (('fidelity', _PAGE), ('algorithms', _ALGORITHMS))
# `folder/file.py:function` or `file_test.py:Class.method`.
_REFERENCE = re.compile(r'`([\w/]+\.py):([\w.]+)`')


def missing(page: str) -> list[str]:
  """Returns the references of a page to what does not exist."""
  found = []
  for path, name in _REFERENCE.findall(page):
    file = _file(path)
    if not file.is_file():
      found.append(f'{path}: there is no such file')
    elif name not in _names(file):
      found.append(f'{path}: there is no {name}')
  return found


def _file(path: str) -> pathlib.Path:
  if path.startswith(('configs/', 'bench/')):
    return _ROOT / path
  folder = 'tests' if path.endswith('_test.py') else 'dapo_jax'
  return _ROOT / folder / path


def _names(file: pathlib.Path) -> set[str]:
  """Returns the functions and classes of a file, methods as Class.method."""
  names = set()
  for node in ast.parse(file.read_text()).body:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
      names.add(node.name)
    if isinstance(node, ast.ClassDef):
      names |= {
        f'{node.name}.{part.name}'
        for part in node.body
        if isinstance(part, ast.FunctionDef)
      }
  return names


class ReferenceTest(parameterized.TestCase):
  @parameterized.named_parameters(*_PAGES)
  def test_every_function_and_every_test_exists(self, page):
    self.assertNotEmpty(_REFERENCE.findall(page))
    self.assertEmpty(missing(page))

  @parameterized.named_parameters(*_PAGES)
  def test_every_link_and_every_file_is_there(self, page):
    for target in re.findall(r'\]\(([^)]+)\)', page):
      if not target.startswith('https://'):
        self.assertTrue((_ROOT / 'docs' / target).is_file(), target)
    for path in re.findall(r'`((?:configs|bench)/\w+\.py)`', page):
      self.assertTrue((_ROOT / path).is_file(), path)

  def test_the_page_names_many_of_both(self):
    paths = [path for path, _ in _REFERENCE.findall(_PAGE)]
    tests = [path for path in paths if path.endswith('_test.py')]
    self.assertGreater(len(tests), 30)
    self.assertGreater(len(paths) - len(tests), 30)

  def test_every_detail_of_a_paper_has_a_function_and_a_test(self):
    details = _PAGE.split('## DAPO\n')[1].split('## Where')[0]
    rows = re.findall(r'^\| (?!paper|---)(.*) \|$', details, re.MULTILINE)
    self.assertGreater(len(rows), 30)
    for row in rows:
      _, function, test = row.split(' | ')
      self.assertRegex(function, r'^`[\w/]+\.py:\w+`', row)
      self.assertRegex(test, r'^`\w+_test\.py:\w+\.test_\w+`', row)

  def test_what_does_not_exist_is_noticed(self):
    page = (
      '`objective/clip.py:fixed_bounds` `objective/clip.py:gone` '
      '`objective/gone.py:f` `clip_test.py:FixedBoundsTest.test_gone`'
    )
    self.assertEqual(
      missing(page),
      [
        'objective/clip.py: there is no gone',
        'objective/gone.py: there is no such file',
        'clip_test.py: there is no FixedBoundsTest.test_gone',
      ],
    )


def _keys(page: str) -> list[tuple[str, str]]:
  """Returns every `section.key` or `section.key=value` of a page."""
  sections = '|'.join({k.split('.')[0] for k in config_keys.known_keys()})
  return re.findall(rf'`((?:{sections})\.[a-z_]+)=?([^`\s]*)`', page)


class NamesTest(parameterized.TestCase):
  @parameterized.named_parameters(*_PAGES)
  def test_every_key_exists_and_takes_the_value(self, page):
    found = _keys(page)
    self.assertGreater(len(found), 8)
    for key, value in found:
      self.assertIn(key, config_keys.known_keys())
      if value and key in config_rules._CHOICES:
        choices = map(str, config_rules._CHOICES[key])
        self.assertIn(value, choices, key)

  def test_every_choice_of_an_objective_is_explained(self):
    for key, choices in config_rules._CHOICES.items():
      if key.startswith(('objective.', 'advantage.')):
        self.assertIn(f'`{key}', _ALGORITHMS)
        for choice in map(str, choices):
          self.assertRegex(_ALGORITHMS, rf'\b{choice}\b', f'{key}={choice}')

  @parameterized.named_parameters(*_PAGES)
  def test_every_metric_exists(self, page):
    metrics = set(re.findall(r'`([a-z]+/[a-z_]+_(?:frac|nats))`', page))
    self.assertNotEmpty(metrics)
    catalogue.check(metrics)


if __name__ == '__main__':
  absltest.main()
