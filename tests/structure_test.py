"""The structure that the code keeps: layers, host modules, sizes, names.

Each rule is a function from the sources to a list of its violations. It is
applied to the repository, which must have none, and to a planted fault.
"""

import ast
import re
import subprocess
import sys

from absl.testing import absltest

import source_tree

# The folders of dapo_jax/, lowest first: a module imports only modules of its
# own folder and of those before it.
LAYERS = (
  'objective',
  'data',
  'rewards',
  'monitor',
  'parallel',
  'model',
  'sampling',
  'rollout',
  'training',
  'planning',
)
# Host modules import nothing that brings jax. What main.py imports inside
# functions does not count, so that help answers at once.
HOST = (
  'dapo_jax/__init__.py',
  'dapo_jax/data_command.py',
  'dapo_jax/config.py',
  'dapo_jax/config_data_relations.py',
  'dapo_jax/config_keys.py',
  'dapo_jax/config_relations.py',
  'dapo_jax/config_rules.py',
  'dapo_jax/data/',
  'dapo_jax/main.py',
  'dapo_jax/model_commands.py',
  'dapo_jax/plan_command.py',
  'dapo_jax/run_commands.py',
  'dapo_jax/monitor/',
  'dapo_jax/objective/advantage.py',
  'dapo_jax/objective/overlong.py',
  'dapo_jax/objective/returns.py',
  'dapo_jax/objective/weighting.py',
  'dapo_jax/rewards/',
  'dapo_jax/rollout/grading.py',
  'configs/',
)
# Third-party modules that only these files may import.
ONLY_IN = {
  'jetstream': (
    'dapo_jax/sampling/engine.py',
    'dapo_jax/sampling/jetstream_compat.py',
  ),
  # Below these, functions take numbers, not a configuration.
  'ml_collections': (
    'configs/',
    'dapo_jax/config.py',
    'dapo_jax/config_data_relations.py',
    'dapo_jax/config_keys.py',
    'dapo_jax/config_relations.py',
    'dapo_jax/config_rules.py',
    'dapo_jax/run_commands.py',
    'dapo_jax/planning/',
    'dapo_jax/training/',
    'tests/',
  ),
  'tensorflow': (),
  'torch': ('tests/',),
  'transformers': ('tests/',),
}
FILE_LINES, FUNCTION_LINES, PARAMETERS = 400, 80, 8
# A module has a test file of its own name, or is tested through another.
TESTED_IN = {
  'dapo_jax/__init__.py': 'tests/main_test.py',
  'dapo_jax/model_commands.py': 'tests/main_test.py',
  'dapo_jax/run_commands.py': 'tests/main_test.py',
  'dapo_jax/data_command.py': 'tests/main_test.py',
  'dapo_jax/config_keys.py': 'tests/config_test.py',
  'dapo_jax/plan_command.py': 'tests/main_test.py',
  'dapo_jax/planning/plan_json.py': 'tests/plan_text_test.py',
  'dapo_jax/training/outlets.py': 'tests/loop_test.py',
  'dapo_jax/model/chunked_attention.py': 'tests/row_attention_test.py',
  'dapo_jax/model/splash.py': 'tests/row_attention_test.py',
  'dapo_jax/rewards/verdicts.py': 'tests/reward_test.py',
  'dapo_jax/training/update_stats.py': 'tests/update_test.py',
  'dapo_jax/rewards/tasks.py': 'tests/task_verdicts_test.py',
}
# Written so that this line is not one of those it finds.
_UNWANTED = re.compile('TO[D]O|FIX[M]E|XX[X]')


def misplaced_imports(sources: source_tree.Sources) -> list[str]:
  """Returns the imports of ours from a higher layer, or of no module."""
  found = []
  for path in sources:
    here = source_tree.imports(path, sources)
    allowed = _may_import(path)
    found += [
      f'{path} imports {other}, which is not below it'
      for other in sorted(here.ours)
      if not other.startswith(allowed)
    ]
    found += [f'{path} imports {n}, no module' for n in sorted(here.names)]
  return found


# They import what they call, which may be anything.
_COMMANDS = (
  'dapo_jax/data_command.py',
  'dapo_jax/main.py',
  'dapo_jax/model_commands.py',
  'dapo_jax/plan_command.py',
  'dapo_jax/run_commands.py',
)


def _may_import(path: str) -> tuple[str, ...]:
  """Returns how the paths begin that `path` may import."""
  if path.startswith('tests/'):
    return ('configs/', 'dapo_jax/', 'tests/')
  if path in _COMMANDS:
    return ('configs/', 'dapo_jax/')
  if path.startswith('configs/'):
    return ('configs/',)
  if path.startswith('dapo_jax/config'):
    return ('configs/', 'dapo_jax/config')
  folder = path.split('/')[1]
  below = LAYERS[: LAYERS.index(folder) + 1] if folder in LAYERS else ()
  # The defaults that a saved configuration lacks.
  defaults = ('configs/base.py',) if folder == 'training' else ()
  return (
    'dapo_jax/__init__.py',
    *(f'dapo_jax/{f}/' for f in below),
    *defaults,
  )


def host_modules_with_jax(sources: source_tree.Sources) -> list[str]:
  """Returns the host modules that import jax or what brings it, and how."""
  brings_jax = {'flax', 'jax', 'jaxlib', 'jetstream', 'optax', 'orbax'}
  return [
    f'{path} imports {name}, by {" -> ".join(chain)}'
    for path in sources
    if path.startswith(HOST)
    for name, chain in source_tree.reached(path, sources).items()
    if name in brings_jax
  ]


def restricted_imports(sources: source_tree.Sources) -> list[str]:
  """Returns the imports that only other files may make."""
  return [
    f'{path} imports {name}; only {", ".join(ONLY_IN[name]) or "no file"} may'
    for path in sources
    for name in sorted(source_tree.imports(path, sources).theirs)
    if name in ONLY_IN and not path.startswith(ONLY_IN[name])
  ]


def oversized(sources: source_tree.Sources) -> list[str]:
  """Returns the files and functions, tests aside, beyond a hard limit."""
  found = []
  for path, text in sources.items():
    if path.startswith('tests/'):
      continue
    lines = len(text.splitlines())
    if lines > FILE_LINES:
      found.append(f'{path} has {lines} lines, at most {FILE_LINES}')
    for node in ast.walk(ast.parse(text)):
      if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        lines = node.end_lineno - node.lineno + 1
        arguments = node.args.posonlyargs + node.args.args
        names = {a.arg for a in arguments + node.args.kwonlyargs}
        count = len(names - {'self', 'cls'})
        if lines > FUNCTION_LINES:
          found.append(
            f'{path}: {node.name} has {lines} lines, at most {FUNCTION_LINES}'
          )
        if count > PARAMETERS:
          found.append(
            f'{path}: {node.name} has {count} parameters, at most {PARAMETERS}'
          )
  return found


def unwanted_words(sources: source_tree.Sources) -> list[str]:
  """Returns the lines that put work off, and files that are named for none."""
  found = [
    f'{path}: a module is named for its one concept'
    for path in sources
    if re.search(r'/(utils?|helpers?|common|misc)\.py$', path)
  ]
  for path, text in sources.items():
    for number, line in enumerate(text.splitlines(), 1):
      if _UNWANTED.search(line):
        found.append(f'{path}, line {number}: {line.strip()}')
  return found


def untested(sources: source_tree.Sources) -> list[str]:
  """Returns the modules without a test file that imports them."""
  found = []
  for path, text in sources.items():
    if path.startswith('tests/') or not text.strip():
      continue
    name = path.rpartition('/')[2].removesuffix('.py')
    test = f'tests/{name}_test.py'
    if path in TESTED_IN or path.startswith('configs/'):
      continue  # config_test loads every configuration, by its path
    if test not in sources:
      found.append(f'{path}: there is no {test}')
    elif path not in source_tree.imports(test, sources).ours:
      found.append(f'{path}: {test} does not import it')
  return found


class RuleTest(absltest.TestCase):
  """Applies every rule to the repository."""

  def setUp(self):
    super().setUp()
    self.sources = source_tree.read()

  def test_imports_point_down(self):
    self.assertEmpty(misplaced_imports(self.sources))

  def test_host_modules_import_no_jax(self):
    self.assertEmpty(host_modules_with_jax(self.sources))

  def test_restricted_modules_stay_where_they_belong(self):
    self.assertEmpty(restricted_imports(self.sources))

  def test_hard_limits_on_size(self):
    self.assertEmpty(oversized(self.sources))

  def test_nothing_is_put_off(self):
    self.assertEmpty(unwanted_words(self.sources))

  def test_every_module_has_a_test(self):
    self.assertEmpty(untested(self.sources))

  def test_tables_name_what_exists(self):
    folders = {p.split('/')[1] for p in self.sources if p.count('/') == 2}
    self.assertContainsSubset(
      {f for f in folders if f'dapo_jax/{f}/__init__.py' in self.sources},
      LAYERS,
    )
    named = [*HOST, *TESTED_IN, *TESTED_IN.values()]
    for start in named:
      self.assertTrue(any(p.startswith(start) for p in self.sources), start)


class RunTest(absltest.TestCase):
  """Imports modules in a new interpreter, to see what really happens."""

  def _run(self, code: str) -> str:
    done = subprocess.run(
      [sys.executable, '-c', code],
      capture_output=True,
      text=True,
      cwd=source_tree.ROOT,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    return done.stdout.strip()

  def _names(self, *starts: str) -> list[str]:
    return [
      path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')
      for path in source_tree.read()
      if path.startswith(starts)
    ]

  def _first_with(self, package: str, names: list[str]) -> str:
    """Returns the first module that brings a package, '' if none does."""
    self.assertNotEmpty(names)
    return self._run(
      'import importlib, sys\n'
      f'for name in {names}:\n'
      '  importlib.import_module(name)\n'
      f'  if "{package}" in sys.modules:\n'
      '    print(name)\n'
      '    break\n'
    )

  def test_host_modules_bring_no_jax(self):
    self.assertEqual(self._first_with('jax', self._names(*HOST)), '')

  def test_module_with_jax_is_noticed(self):
    names = self._names('dapo_jax/objective/ratio.py')
    self.assertEqual(self._first_with('jax', names), 'dapo_jax.objective.ratio')

  def test_a_plan_brings_nothing_large(self):
    # Half a gigabyte, beside a compiler that needs the memory of a laptop.
    names = self._names('dapo_jax/planning/', 'dapo_jax/plan_command.py')
    for package in ('tensorflow', 'orbax', 'jetstream'):
      self.assertEqual(self._first_with(package, names), '', package)

  _BACKENDS = (
    'from jax._src import xla_bridge; print(len(xla_bridge._backends))'
  )

  def test_importing_everything_touches_no_device(self):
    names = self._names('dapo_jax/')
    imports = f'import importlib\n[*map(importlib.import_module, {names})]\n'
    self.assertEqual(self._run(imports + self._BACKENDS), '0')

  def test_touched_device_is_noticed(self):
    touch = 'import jax\njax.devices()\n'
    self.assertNotEqual(self._run(touch + self._BACKENDS), '0')


class PlantedFaultTest(absltest.TestCase):
  """Shows each rule a small tree that breaks it."""

  def test_import_of_a_higher_layer(self):
    sources = {
      'dapo_jax/data/stream.py': 'from dapo_jax.model import decoder',
      'dapo_jax/model/decoder.py': 'from dapo_jax.data import stream',
      'dapo_jax/misplaced.py': 'from dapo_jax.data import stream',
      'dapo_jax/training/loop.py': 'def f():\n  from dapo_jax import config',
      'dapo_jax/config.py': 'from configs import base',
      'configs/base.py': 'from dapo_jax import config',
    }
    self.assertEqual(
      misplaced_imports(sources),
      [
        'dapo_jax/data/stream.py imports dapo_jax/model/decoder.py, which is '
        'not below it',
        'dapo_jax/misplaced.py imports dapo_jax/data/stream.py, which is not '
        'below it',
        'dapo_jax/training/loop.py imports dapo_jax/config.py, which is not '
        'below it',
        'configs/base.py imports dapo_jax/config.py, which is not below it',
      ],
    )

  def test_import_of_no_module(self):
    sources = {
      'dapo_jax/data/records.py': '',
      'dapo_jax/data/stream.py': (
        'from dapo_jax.data import gone\n'
        'from dapo_jax.data.records import Prompt\n'
      ),
    }
    self.assertEqual(
      misplaced_imports(sources),
      [
        'dapo_jax/data/stream.py imports dapo_jax.data.gone, no module',
        'dapo_jax/data/stream.py imports dapo_jax.data.records.Prompt, no '
        'module',
      ],
    )

  def test_jax_in_a_host_module(self):
    sources = {
      'dapo_jax/data/stream.py': 'import jax.numpy as jnp',
      'dapo_jax/rewards/reward.py': 'from dapo_jax.data import stream',
      'dapo_jax/main.py': 'def f():\n  import jax',
      'dapo_jax/model/decoder.py': 'import jax',
    }
    self.assertEqual(
      host_modules_with_jax(sources),
      [
        'dapo_jax/data/stream.py imports jax, by dapo_jax/data/stream.py',
        'dapo_jax/rewards/reward.py imports jax, by '
        'dapo_jax/rewards/reward.py -> dapo_jax/data/stream.py',
      ],
    )

  def test_jetstream_outside_the_engine(self):
    engine = 'dapo_jax/sampling/engine.py'
    compat = 'dapo_jax/sampling/jetstream_compat.py'
    sources = {
      'dapo_jax/sampling/scheduler.py': 'def f():\n  import jetstream.engine',
      engine: 'from jetstream import engine',
      'dapo_jax/model/decoder.py': 'from ml_collections import config_dict',
    }
    found = restricted_imports(sources)
    self.assertLen(found, 2)
    self.assertEqual(
      found[0],
      'dapo_jax/sampling/scheduler.py imports jetstream; only '
      f'{engine}, {compat} may',
    )
    self.assertStartsWith(
      found[1], 'dapo_jax/model/decoder.py imports ml_collections; only '
    )

  def test_sizes(self):
    nine = ', '.join('abcdefghi')
    sources = {
      'dapo_jax/data/long.py': '\n' * 401,
      'dapo_jax/data/function.py': 'def f():\n' + '  a = 1\n' * 80,
      'dapo_jax/data/parameters.py': f'def f({nine}): pass',
      'dapo_jax/data/method.py': 'def f(self, a, b, c, *, d, e, f, g, h): pass',
      'tests/long_test.py': '\n' * 401,
    }
    self.assertEqual(
      oversized(sources),
      [
        'dapo_jax/data/long.py has 401 lines, at most 400',
        'dapo_jax/data/function.py: f has 81 lines, at most 80',
        'dapo_jax/data/parameters.py: f has 9 parameters, at most 8',
      ],
    )

  def test_words(self):
    word = 'TO' + 'DO'
    sources = {
      'dapo_jax/data/utils.py': '',
      'dapo_jax/data/stream.py': f'\n# {word}: later',
    }
    self.assertEqual(
      unwanted_words(sources),
      [
        'dapo_jax/data/utils.py: a module is named for its one concept',
        f'dapo_jax/data/stream.py, line 2: # {word}: later',
      ],
    )

  def test_module_without_a_test(self):
    sources = {
      'dapo_jax/data/records.py': 'x = 1',
      'dapo_jax/data/stream.py': 'x = 1',
      'tests/stream_test.py': 'from dapo_jax.data import records',
    }
    self.assertEqual(
      untested(sources),
      [
        'dapo_jax/data/records.py: there is no tests/records_test.py',
        'dapo_jax/data/stream.py: tests/stream_test.py does not import it',
      ],
    )


if __name__ == '__main__':
  absltest.main()
