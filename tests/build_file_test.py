"""Holds the root BUILD file to the code. Needs no Bazel.

A BUILD file reads as Python, so it is executed with recorders for its rules.
(Python accepts more than Starlark does: only Bazel or buildifier can judge
the syntax.)
"""

import ast
import re
from collections.abc import Collection
from typing import Any, NamedTuple

from absl.testing import absltest

import source_tree

# The distribution that a third-party module comes from, where they differ.
DISTRIBUTIONS = {
  'absl': 'absl-py',
  'grpc': 'grpcio',
  'yaml': 'pyyaml',
  'jetstream': 'google-jetstream',
  'latex2sympy2_extended': 'math-verify',
  'ml_collections': 'ml-collections',
  'ml_dtypes': 'ml-dtypes',
  'orbax': 'orbax-checkpoint',
  'reasoning_gym': 'reasoning-gym',
  'tensorflow_datasets': 'tensorflow-datasets',
}
# What is installed for the sake of something else that imports it.
_NOT_IMPORTED = {
  'protobuf',  # sentencepiece's model of a tokenizer file
}
_DATA = source_tree.ROOT / 'tests' / 'data'


class Target(NamedTuple):
  """A rule of the BUILD file."""

  name: str
  kind: str
  attributes: dict[str, Any]

  def deps(self, start: str) -> set[str]:
    """Returns the deps that begin with `start`, without it."""
    deps = self.attributes.get('deps', [])
    return {d.removeprefix(start) for d in deps if d.startswith(start)}


def targets(build: str) -> list[Target]:
  """Returns the targets of a BUILD file, in its order."""
  found = []

  def recorder(kind):
    return lambda name, **attributes: found.append(
      Target(name, kind, attributes)
    )

  scope = {k: recorder(k) for k in ('py_binary', 'py_library', 'py_test')}
  for name in ('load', 'package', 'licenses', 'exports_files'):
    scope[name] = lambda *args, **kwargs: None
  scope['glob'] = lambda patterns: []
  scope['requirement'] = lambda name: f'@pip//{name}'
  exec(build, scope)
  return found


def data_files(test: str) -> list[str]:
  """Returns the files under tests/data/ whose names a test's text holds."""
  return [
    str(path.relative_to(source_tree.ROOT))
    for path in sorted(_DATA.rglob('*'))
    if path.is_file() and path.stem in re.findall(r'\w+', test)
  ]


def target_problems(build: str, sources: source_tree.Sources) -> list[str]:
  """Returns where the targets and the code disagree."""
  found, owners, above = [], {}, set()
  for target in targets(build):
    name = target.name
    for dep in sorted(target.deps(':') - above):
      found.append(f'{name} depends on :{dep}, which is not above it')
    if name in above:
      found.append(f'{name} is declared twice')
    above.add(name)
    (path,) = target.attributes['srcs']
    owners[path] = name
    if name != _name(path):
      found.append(f'{name} holds {path}, so it is {_name(path)}')
    if path not in sources:
      found.append(f'{name} holds {path}, which does not exist')
      continue
    found += _dep_problems(target, path, sources)
    if target.kind == 'py_test':
      if "if __name__ == '__main__':" not in sources[path]:
        found.append(f'{name} runs no test: it has no __main__ guard')
      if target.attributes.get('data', []) != data_files(sources[path]):
        found.append(f'{name} has data other than {data_files(sources[path])}')
  return found + [
    f'{path} is in no target'
    for path, text in sources.items()
    if path not in owners and text.strip() and path != 'tests/conftest.py'
  ]


def _dep_problems(
  target: Target, path: str, sources: source_tree.Sources
) -> list[str]:
  """Returns where a target's deps are not what its file imports."""
  code = source_tree.imports(path, sources)
  ours = {_name(p) for p in code.ours if sources[p].strip()}
  theirs = {DISTRIBUTIONS.get(name, name) for name in code.theirs}
  found = []
  for start, imported in ((':', ours), ('@pip//', theirs)):
    declared = target.deps(start)
    for dep in sorted(imported - declared):
      found.append(f'{target.name} imports {dep} without depending on it')
    for dep in sorted(declared - imported):
      found.append(f'{target.name} depends on {dep} without importing it')
  return found


def _name(path: str) -> str:
  """Returns the name of the target that holds a file."""
  stem = path.removesuffix('.py')
  if stem == 'dapo_jax/__init__':
    return 'version'
  stem = stem.removeprefix('dapo_jax/')
  if stem.endswith('_test'):
    stem = stem.removeprefix('tests/')
  return stem.replace('/', '_')


def requirement_problems(setup: str, sources: source_tree.Sources) -> list[str]:
  """Returns what setup.py installs but nothing imports, and the reverse."""
  core, extras = _requirements(setup)
  package, optional, tests = set(), set(), set()
  for path in sources:
    always, ever = (
      {
        DISTRIBUTIONS.get(name, name)
        for name in source_tree.imports(path, sources, deferred=deferred).theirs
      }
      for deferred in (False, True)
    )
    if path.startswith('tests/'):
      tests |= ever
    else:
      package |= always
      # What is imported inside a function may be in an extra.
      optional |= ever - always
  package |= optional - extras
  return [
    *(
      f'{name} is imported but not installed' for name in sorted(package - core)
    ),
    *(
      f'{name} is imported by tests but in no extra'
      for name in sorted(tests - core - extras)
    ),
    *(
      f'{name} is installed but not imported'
      for name in sorted(core - package - optional - _NOT_IMPORTED)
    ),
  ]


def _requirements(setup: str) -> tuple[set[str], set[str]]:
  """Returns the distributions in `_CORE` and in `_EXTRAS` of setup.py."""
  values = {
    node.targets[0].id: ast.literal_eval(node.value)
    for node in ast.parse(setup).body
    if isinstance(node, ast.Assign)
    and node.targets[0].id in ('_CORE', '_EXTRAS')
  }
  extras = [name for names in values['_EXTRAS'].values() for name in names]
  return _bare(values['_CORE']), _bare(extras)


def _bare(requirements: Collection[str]) -> set[str]:
  """Returns the names of requirements, without extras and versions."""
  return {re.match(r'[\w.-]+', name)[0].lower() for name in requirements}


class BuildFileTest(absltest.TestCase):
  """Applies the rules to the repository."""

  def test_targets_are_the_modules_and_deps_their_imports(self):
    build = (source_tree.ROOT / 'BUILD').read_text()
    self.assertEmpty(target_problems(build, source_tree.read()))

  def test_setup_installs_what_is_imported(self):
    setup = (source_tree.ROOT / 'setup.py').read_text()
    self.assertEmpty(requirement_problems(setup, source_tree.read()))


class PlantedFaultTest(absltest.TestCase):
  """Shows the rules small trees that break them."""

  _SOURCES = {
    'dapo_jax/data/records.py': 'import numpy as np',
    'dapo_jax/data/stream.py': 'from dapo_jax.data import records',
    'tests/stream_test.py': (
      'from dapo_jax.data import stream\n'
      "if __name__ == '__main__':\n  stream.f()"
    ),
  }
  _BUILD = """
load("@rules_python//python:defs.bzl", "py_library", "py_test")

py_library(
    name = "data_records",
    srcs = ["dapo_jax/data/records.py"],
    deps = [requirement("numpy")],
)

py_library(
    name = "data_stream",
    srcs = ["dapo_jax/data/stream.py"],
    deps = [":data_records"],
)

py_test(
    name = "stream_test",
    srcs = ["tests/stream_test.py"],
    deps = [":data_stream"],
)
"""
  _SETUP = "_CORE = ['numpy']\n_EXTRAS = {'dev': ['pytest>=9', 'jax[tpu]']}\n"

  def _problems(self, old: str, new: str) -> list[str]:
    self.assertIn(old, self._BUILD)
    return target_problems(self._BUILD.replace(old, new), self._SOURCES)

  def test_small_tree_is_sound(self):
    self.assertEmpty(target_problems(self._BUILD, self._SOURCES))
    self.assertEmpty(requirement_problems(self._SETUP, self._SOURCES))

  def test_missing_dep(self):
    self.assertEqual(
      self._problems('[":data_records"]', '[]'),
      ['data_stream imports data_records without depending on it'],
    )

  def test_needless_dep(self):
    self.assertEqual(
      self._problems('[":data_stream"]', '[":data_stream", ":data_records"]'),
      ['stream_test depends on data_records without importing it'],
    )

  def test_missing_requirement(self):
    self.assertEqual(
      self._problems('requirement("numpy")', ''),
      ['data_records imports numpy without depending on it'],
    )

  def test_needless_requirement(self):
    self.assertEqual(
      self._problems(
        '[":data_records"]', '[":data_records", requirement("jax")]'
      ),
      ['data_stream depends on jax without importing it'],
    )

  def test_order(self):
    start, end = self._BUILD.index('py_library('), self._BUILD.index('py_test(')
    upside_down = self._BUILD[end:] + self._BUILD[start:end]
    self.assertEqual(
      target_problems(upside_down, self._SOURCES),
      ['stream_test depends on :data_stream, which is not above it'],
    )

  def test_name(self):
    found = self._problems('name = "stream_test"', 'name = "streams"')
    self.assertEqual(
      found, ['streams holds tests/stream_test.py, so it is stream_test']
    )

  def test_file_that_is_gone(self):
    sources = dict(self._SOURCES)
    del sources['tests/stream_test.py']
    self.assertEqual(
      target_problems(self._BUILD, sources),
      ['stream_test holds tests/stream_test.py, which does not exist'],
    )

  def test_file_without_a_target(self):
    sources = self._SOURCES | {'dapo_jax/data/sources.py': 'x = 1'}
    self.assertEqual(
      target_problems(self._BUILD, sources),
      ['dapo_jax/data/sources.py is in no target'],
    )

  def test_empty_package_file_needs_no_target(self):
    sources = self._SOURCES | {'dapo_jax/data/__init__.py': ''}
    self.assertEmpty(target_problems(self._BUILD, sources))

  def test_test_that_runs_nothing(self):
    sources = self._SOURCES | {
      'tests/stream_test.py': 'from dapo_jax.data import stream'
    }
    self.assertEqual(
      target_problems(self._BUILD, sources),
      ['stream_test runs no test: it has no __main__ guard'],
    )

  def test_data_that_is_not_declared(self):
    name = 'math_dapo_cases'
    self.assertNotEmpty(data_files(name))
    sources = dict(self._SOURCES)
    sources['tests/stream_test.py'] += f'\n# {name}'
    self.assertEqual(
      target_problems(self._BUILD, sources),
      [f'stream_test has data other than {data_files(name)}'],
    )

  def test_requirements(self):
    sources = self._SOURCES | {
      'dapo_jax/data/sources.py': 'import rich',
      'tests/records_test.py': 'import pytest, jax, torch',
    }
    self.assertEqual(
      requirement_problems(
        self._SETUP.replace("'numpy'", "'numpy', 'flax'"), sources
      ),
      [
        'rich is imported but not installed',
        'torch is imported by tests but in no extra',
        'flax is installed but not imported',
      ],
    )

  def test_requirement_of_a_function(self):
    import_all = 'def f():\n  import jax, numpy, torch'
    sources = {'dapo_jax/data/sources.py': import_all}
    # jax is in an extra, numpy in the core.
    self.assertEqual(
      requirement_problems(self._SETUP, sources),
      ['torch is imported but not installed'],
    )


if __name__ == '__main__':
  absltest.main()
