"""Every key of `configs/base.py` is read somewhere, and no other key is.

A static reading of the only places that a configuration reaches. There, the
name `config` and every attribute of that name are the whole configuration. A
section may get a short name (`c = config.optim`) but is not passed on: what
is below takes values.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import ml_collections
from absl.testing import absltest

import source_tree
from dapo_jax import config_keys

_READERS = (
  'dapo_jax/main.py',
  'dapo_jax/run_commands.py',
  'dapo_jax/model_commands.py',
  'dapo_jax/data_command.py',
  'dapo_jax/plan_command.py',
  'dapo_jax/planning/',
  'dapo_jax/training/',
)
# Methods of a configuration that read no key in particular.
_METHODS = ('to_dict',)
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class _Use(NamedTuple):
  """A use of a part of the configuration.

  Attributes:
    line: its number.
    path: `a.b` for `config.a.b`; '' for the whole.
    only_named: whether the part is only given a short name.
  """

  line: int
  path: str
  only_named: bool = False


def faults(sources: source_tree.Sources, keys: Collection[str]) -> list[str]:
  """Returns the reads that no key answers, and the keys that nobody reads."""
  found, read = [], set()
  for path, text in sources.items():
    if path.startswith(_READERS):
      tree = ast.parse(text)
      for use in _uses(tree, {'config': ''}):
        if not use.path:
          continue
        read |= {key for key in keys if _is_within(use.path, key)}
        if fault := _fault(use, keys):
          found.append(f'{path}, line {use.line}: {fault}')
      found += [f'{path}, {fault}' for fault in _misnamed(tree)]
  return found + [f'{key} is read nowhere' for key in keys if key not in read]


def _is_within(path: str, key: str) -> bool:
  """Says whether `path` is `key`, or an attribute of its value."""
  return f'{path}.'.startswith(f'{key}.')


def _fault(use: _Use, keys: Collection[str]) -> str:
  """Returns what is wrong with a use, '' if nothing is."""
  section, _, last = use.path.rpartition('.')
  is_section = any(key.startswith(f'{use.path}.') for key in keys)
  if any(_is_within(use.path, key) for key in keys):
    return ''
  if is_section and use.only_named:
    return ''
  if is_section:
    return f'pass on the values of config.{use.path}, not the section'
  if last in _METHODS and any(key.startswith(section) for key in keys):
    return ''
  return f'configs/base.py has no {use.path}'


def _misnamed(tree: ast.AST) -> Iterator[str]:
  """Yields the configurations whose name would hide their uses."""
  for node in ast.walk(tree):
    if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
      name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
      if 'ConfigDict' in ast.unparse(node.annotation) and name != 'config':
        yield f'line {node.lineno}: {name} is a configuration: name it config'


def _uses(node: ast.AST, names: Mapping[str, str]) -> Iterator[_Use]:
  """Yields the uses in a tree, where each of `names` means a path."""
  path = _path(node, names)
  if path is not None:
    yield _Use(node.lineno, path)
    return
  if isinstance(node, ast.Subscript) and _path(node.value, names) is not None:
    yield _Use(node.lineno, f'{_path(node.value, names)}.[]'.lstrip('.'))
    return
  if isinstance(node, ast.Assign):
    for target, value in _assignments(node):
      path = _path(value, names)
      if isinstance(target, ast.Name) and path is not None:
        yield _Use(value.lineno, path, only_named=True)
      else:
        yield from _uses(value, names)
    return
  if isinstance(node, _FUNCTION):
    names = _names_inside(node, names)
  for child in ast.iter_child_nodes(node):
    yield from _uses(child, names)


def _names_inside(
  function: ast.AST, names: Mapping[str, str]
) -> dict[str, str]:
  """Returns the names that mean a path in a function, and their paths."""
  arguments = {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
  inside = {n: p for n, p in names.items() if n not in arguments - {'config'}}
  for node in ast.walk(function):
    for target, value in _assignments(node):
      path = _path(value, inside)
      if isinstance(target, ast.Name) and path is not None:
        inside[target.id] = path
  return inside


def _assignments(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
  """Yields target and value of an assignment, one by one if it has several."""
  if isinstance(node, ast.Assign):
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
      yield from zip(target.elts, value.elts, strict=True)
    else:
      yield target, value


def _path(node: ast.AST, names: Mapping[str, str]) -> str | None:
  """Returns the path that an expression means, None if it means none."""
  if isinstance(node, ast.Name):
    return names.get(node.id)
  if isinstance(node, ast.Attribute):
    path = _path(node.value, names)
    if path is not None:
      return f'{path}.{node.attr}'.lstrip('.')
    return '' if node.attr == 'config' else None
  return None


class ConfigUseTest(absltest.TestCase):
  def test_every_key_is_read_and_every_read_is_a_key(self):
    keys = list(config_keys.known_keys())
    self.assertNotEmpty(keys)
    self.assertEmpty(faults(source_tree.read(), keys))

  def test_no_key_hides_behind_a_method_of_a_configuration(self):
    # `config.update.x` would be an attribute of the method `update`.
    parts = {n for key in config_keys.known_keys() for n in key.split('.')}
    self.assertEmpty(parts & set(dir(ml_collections.ConfigDict)))


class PlantedFaultTest(absltest.TestCase):
  _KEYS = ('seed', 'optim.lr', 'data.sums.terms')

  def _faults(self, text: str, *, keys=_KEYS) -> list[str]:
    return faults({'dapo_jax/training/loop.py': text}, keys)

  def test_every_way_to_read_is_followed(self):
    self.assertEmpty(
      self._faults(
        'def f(config, x):\n'
        '  c, y = config.data, x\n'
        '  def g():\n'
        '    return c.sums.terms.bit_length()\n'
        '  config.to_dict()\n'
        '  h(x.config.optim.lr, lambda: config.seed, config)\n'
      )
    )

  def test_unread_key(self):
    self.assertEqual(
      self._faults('def f(config): return config.seed, config.optim.lr'),
      ['data.sums.terms is read nowhere'],
    )

  def test_key_is_not_read_by_what_merely_looks_like_it(self):
    text = 'def f(c): return c.optim.lr, optim.lr, conf.optim.lr'
    self.assertEqual(
      self._faults(text, keys=['optim.lr']), ['optim.lr is read nowhere']
    )

  def test_short_name_ends_with_its_function(self):
    text = 'def f(config): c = config.optim\ndef g(c): return c.lr\n'
    self.assertEqual(
      self._faults(text, keys=['optim.lr']), ['optim.lr is read nowhere']
    )

  def test_read_elsewhere_does_not_count(self):
    sources = {'dapo_jax/model/decoder.py': 'def f(config): config.seed'}
    self.assertEqual(faults(sources, ['seed']), ['seed is read nowhere'])

  def _assert_one(self, text: str, fault: str):
    every_key = '[config.seed, config.optim.lr, config.data.sums.terms]\n'
    self.assertEqual(
      self._faults(every_key + text),
      [f'dapo_jax/training/loop.py, {fault}'],
    )

  def test_read_of_no_key(self):
    self._assert_one(
      'def f(config): return config.optim.rate',
      'line 2: configs/base.py has no optim.rate',
    )

  def test_read_of_no_key_by_a_short_name(self):
    self._assert_one(
      'def f(config):\n  c = config.optim\n  return c.rate',
      'line 4: configs/base.py has no optim.rate',
    )

  def test_default_in_the_code(self):
    self._assert_one(
      'def f(config): return config.optim.get("rate", 3)',
      'line 2: configs/base.py has no optim.get',
    )

  def test_key_in_brackets(self):
    self._assert_one(
      'def f(config): return config["rate"]',
      'line 2: configs/base.py has no []',
    )

  def test_section_that_is_passed_on(self):
    self._assert_one(
      'def f(config): g(config.data.sums)',
      'line 2: pass on the values of config.data.sums, not the section',
    )

  def test_configuration_by_another_name(self):
    self._assert_one(
      'def f(c: FrozenConfigDict): pass',
      'line 2: c is a configuration: name it config',
    )


if __name__ == '__main__':
  absltest.main()
