"""Tests of config.py and config_keys.py: what a user is told, and is given."""

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

import ml_collections
from absl import flags
from absl.testing import absltest, parameterized

from configs import base
from dapo_jax import config, config_keys

_ROOT = pathlib.Path(__file__).resolve().parents[1]


_STOPS = 'rollout.stop_strings'
_MIXED = 'data.mixture'
_PAIRS = "pairs in brackets, as (('a', 3), ('b', 1))"


class ConfigCase(parameterized.TestCase):
  """Writes configuration files and asks for what they say."""

  def file(self, body: str, *, arg: str = '') -> str:
    """Returns the path of a file whose get_config runs `body` on `c`."""
    text = (
      'from configs import base\n'
      f'def get_config({arg}):\n'
      '  c = base.get_config()\n'
      f'{textwrap.indent(textwrap.dedent(body), "  ")}\n'
      '  return c\n'
    )
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, 'mine.py')
    path.write_text(text)
    return str(path)

  def assert_told(self, message: str, *args: str, file: str = ''):
    """Checks that the only line told is `message`; FILE stands for the file."""
    path = file or self.file('')
    with self.assertRaises(config.ConfigError) as caught:
      config.load(path, args)
    self.assertEqual(
      str(caught.exception), message.replace('FILE', path.partition(':')[0])
    )


class LoadTest(ConfigCase):
  def test_without_overrides_it_is_what_the_file_says(self):
    loaded = config.load(self.file('c.optim.lr = 3e-4\nc.train.steps = 7'))
    expected = base.get_config()
    expected.optim.lr = 3e-4
    expected.train.steps = 7
    self.assertEqual(loaded.to_dict(), expected.to_dict())

  def test_is_frozen(self):
    loaded = config.load(self.file(''))
    self.assertIsInstance(loaded, ml_collections.FrozenConfigDict)
    with self.assertRaises(AttributeError):
      loaded.optim.lr = 1.0

  @parameterized.parameters(
    ('--config.optim.lr=1e-3', 'optim.lr', 1e-3),
    ('--config.optim.lr=1', 'optim.lr', 1.0),
    ('--config.train.steps=5', 'train.steps', 5),
    ('-config.train.steps=5', 'train.steps', 5),
    ('--config.data.arithmetic.terms=3', 'data.arithmetic.terms', 3),
    ('--config.model.remat=full', 'model.remat', 'full'),
    ('--config.model.path=', 'model.path', ''),
    ('--config.filter.enabled=false', 'filter.enabled', False),
    ('--noconfig.filter.enabled', 'filter.enabled', False),
    ('--config.objective.dual_clip=3', 'objective.dual_clip', 3.0),
    ('--config.sft.stop_accuracy=0.5', 'sft.stop_accuracy', 0.5),
    (r"--config.rollout.stop_strings=('\n\n',)", _STOPS, ('\n\n',)),
    ("--config.rollout.stop_strings='Q:', 'A:'", _STOPS, ('Q:', 'A:')),
    ("--config.rollout.stop_strings=['Q:']", _STOPS, ('Q:',)),
    ('--config.rollout.stop_strings=()', _STOPS, ()),
  )
  def test_override_sets_one_key(self, arg, path, value):
    loaded = config.load(self.file(''), [arg])
    expected = base.get_config()
    expected.update_from_flattened_dict({path: value})
    self.assertEqual(loaded.to_dict(), expected.to_dict())
    self.assertIs(type(loaded[path]), type(value))

  def test_bare_boolean_flag_means_true(self):
    file = self.file('c.filter.enabled = False')
    self.assertFalse(config.load(file).filter.enabled)
    self.assertTrue(
      config.load(file, ['--config.filter.enabled']).filter.enabled
    )

  def test_last_override_wins(self):
    loaded = config.load(
      self.file(''), ['--config.optim.lr=1', '--config.optim.lr=2']
    )
    self.assertEqual(loaded.optim.lr, 2.0)

  def test_none_switches_off_what_the_file_switched_on(self):
    file = self.file('c.objective.dual_clip = 10')
    self.assertEqual(config.load(file).objective.dual_clip, 10.0)
    off = config.load(file, ['--config.objective.dual_clip=none'])
    self.assertIsNone(off.objective.dual_clip)

  def test_file_may_give_texts_as_a_list(self):
    loaded = config.load(self.file("c.rollout.stop_strings = ['Q:']"))
    self.assertEqual(loaded.rollout.stop_strings, ('Q:',))

  @parameterized.parameters(
    "(('arithmetic', 3), ('a.jsonl', 0.5))",
    "[['arithmetic', 3], ['a.jsonl', 0.5]]",
    "('arithmetic', 3), ('a.jsonl', 0.5)",
  )
  def test_a_mixture_is_pairs(self, text):
    loaded = config.load(
      self.file(''), ['--config.data.source=', f'--config.{_MIXED}={text}']
    )
    pairs = (('arithmetic', 3), ('a.jsonl', 0.5))
    self.assertEqual(loaded.data.mixture, pairs)
    file = self.file(f"c.data.source = ''\nc.{_MIXED} = {text}")
    self.assertEqual(config.load(file).data.mixture, pairs)

  def test_file_may_take_an_argument(self):
    file = self.file('c.optim.lr = {"slow": 1e-7}[arg]', arg='arg')
    self.assertEqual(config.load(f'{file}:slow').optim.lr, 1e-7)

  def test_file_may_build_its_own_tree_and_set_a_few_keys(self):
    file = self.file(
      """
      import ml_collections
      c = ml_collections.ConfigDict({'optim': {'lr': 1}})
      """
    )
    expected = base.get_config()
    expected.optim.lr = 1.0
    self.assertEqual(config.load(file).to_dict(), expected.to_dict())


class ParseTest(ConfigCase):
  def _parse(self, *args: str):
    flag_values = flags.FlagValues()
    flags.DEFINE_string('workdir', None, '', flag_values=flag_values)
    loaded, rest = config.parse(args, flag_values)
    return loaded, rest, flag_values.workdir

  def test_values_may_be_arguments_of_their_own(self):
    loaded, rest, workdir = self._parse(
      *('--config', self.file(''), '--config.optim.lr', '1e-3'),
      *('--workdir', 'd', 'word'),
    )
    self.assertEqual((loaded.optim.lr, rest, workdir), (1e-3, ['word'], 'd'))

  def test_file_may_come_after_its_overrides(self):
    loaded, _, _ = self._parse(
      '--config.optim.lr=1e-3', f'--config={self.file("")}'
    )
    self.assertEqual(loaded.optim.lr, 1e-3)

  def test_what_follows_two_dashes_is_no_flag(self):
    loaded, rest, _ = self._parse(
      f'--config={self.file("")}', '--', '--config.optim.lr=1'
    )
    self.assertEqual((loaded.optim.lr, rest), (1e-6, ['--config.optim.lr=1']))

  @parameterized.parameters(
    (
      '--wrkdir=d',
      "Unknown command line flag 'wrkdir'. Did you mean: workdir ?",
    ),
    (
      '--confg=x.py',
      "Unknown command line flag 'confg'. Did you mean: config ?",
    ),
    ('--workdir', 'Missing value for flag --workdir'),
  )
  def test_unknown_flag_names_the_nearest(self, arg, message):
    with self.assertRaises(config.ConfigError) as caught:
      self._parse(f'--config={self.file("")}', arg)
    self.assertEqual(str(caught.exception), message)

  @parameterized.parameters([()], [('--config',)], [('--config=',)])
  def test_file_is_required(self, args):
    with self.assertRaisesRegex(
      config.ConfigError,
      '^--config=FILE is required, such as configs/demo.py$',
    ):
      self._parse(*args)


class UnknownKeyTest(ConfigCase):
  @parameterized.parameters(
    # A slip of the key, in its section or without one.
    ('optim.lrr', 'the nearest is --config.optim.lr'),
    ('sampler.tensr', 'the nearest is --config.sampler.tensor'),
    ('num-epochs', 'the nearest is --config.learner.epochs'),
    # A long name for a short one.
    (
      'learning_rat',
      'the nearest is --config.critic.lr or --config.optim.lr or '
      '--config.sft.lr',
    ),
    ('optim.learning_rate', 'the nearest is --config.optim.lr'),
    # The right key in the wrong section, or below itself.
    ('optim.clip_high', 'it is --config.objective.clip_high'),
    (
      'train.lr',
      'it is --config.critic.lr or --config.optim.lr or --config.sft.lr',
    ),
    ('data.arithmetc.terms', 'it is --config.data.arithmetic.terms'),
    ('optim.lr.x', 'the nearest is --config.optim.lr'),
    # Nothing near.
    (
      'filter.zzz',
      'there are filter.enabled, filter.max_rounds, filter.on_limit',
    ),
  )
  def test_flag_names_the_right_key(self, path, hint):
    self.assert_told(
      f'--config.{path}: there is no such key; {hint}', f'--config.{path}=1'
    )

  def test_unknown_section_lists_the_sections(self):
    message = config_keys.no_such_key('zzz.qqq')
    self.assertStartsWith(
      message, 'zzz.qqq: there is no such key; there are advantage, checkpoint'
    )

  def test_section_is_no_key(self):
    self.assert_told(
      '--config.filter is a section; set --config.filter.enabled or '
      '--config.filter.max_rounds or --config.filter.on_limit',
      '--config.filter=1',
    )

  @parameterized.parameters(
    ('c.optim.lrr = 1e-3', 'optim.lrr', 'the nearest is optim.lr'),
    (
      'c.learning_rat = 1e-6',
      'learning_rat',
      'the nearest is critic.lr or optim.lr or sft.lr',
    ),
    ('c.train.lr = 1e-6', 'train.lr', 'it is critic.lr or optim.lr or sft.lr'),
    (
      'c = {"optim": {"epochs": 2}}',
      'optim.epochs',
      'it is learner.epochs',
    ),
  )
  def test_file_names_the_right_key(self, body, path, hint):
    self.assert_told(
      f'FILE sets {path}: there is no such key; {hint}', file=self.file(body)
    )


class WrongTypeTest(ConfigCase):
  @parameterized.parameters(
    ('optim.lr', 'abc', 'a finite number'),
    ('optim.lr', '', 'a finite number'),
    ('optim.lr', 'true', 'a finite number'),
    ('optim.lr', 'nan', 'a finite number'),
    ('optim.lr', 'inf', 'a finite number'),
    ('optim.lr', 'none', 'a finite number'),
    ('train.steps', 'true', 'a whole number'),
    ('train.steps', '1.5', 'a whole number'),
    ('filter.enabled', 'maybe', 'true or false'),
    ('objective.dual_clip', 'high', 'a finite number or none'),
    (_STOPS, 'Q:', "texts in brackets, as ('a', 'b')"),
    (_STOPS, "('Q:')", "texts in brackets, as ('a', 'b')"),
    (_STOPS, "('Q:', 1)", "texts in brackets, as ('a', 'b')"),
    (_STOPS, "('Q:',", "texts in brackets, as ('a', 'b')"),
    (_STOPS, 'none', "texts in brackets, as ('a', 'b')"),
    (_MIXED, 'a', _PAIRS),
    (_MIXED, "('a', 1)", _PAIRS),
    (_MIXED, "(('a', '1'),)", _PAIRS),
    (_MIXED, "(('a', True),)", _PAIRS),
    (_MIXED, "(('a', 1e999),)", _PAIRS),
    (_MIXED, "(('a', 1, 2),)", _PAIRS),
    (_MIXED, "((1, 'a'),)", _PAIRS),
  )
  def test_flag_names_the_type(self, path, text, kind):
    self.assert_told(
      f'--config.{path} must be {kind}, not {text!r}',
      f'--config.{path}={text}',
    )

  def test_flag_without_its_value(self):
    self.assert_told(
      '--config.optim.lr needs a value, a finite number', '--config.optim.lr'
    )

  def test_only_a_switch_can_be_negated(self):
    self.assert_told(
      '--noconfig.optim.lr: write --config.optim.lr=VALUE, a finite number',
      '--noconfig.optim.lr',
    )

  @parameterized.parameters(
    ('train.steps', True, 'a whole number'),
    ('train.steps', None, 'a whole number'),
    ('optim.lr', float('nan'), 'a finite number'),
    (_STOPS, (1,), "texts in brackets, as ('a', 'b')"),
    (_MIXED, ('a', 1), _PAIRS),
  )
  def test_file_names_key_and_type(self, path, value, kind):
    shown = f'float("{value}")' if isinstance(value, float) else value
    self.assert_told(
      f'FILE sets {path} to {value!r}; it must be {kind}',
      file=self.file(f'c.{path} = {shown}'),
    )

  @parameterized.parameters(
    ('optim', 'lr', "'1e-6'", 'a finite number'),
    ('train', 'steps', '1.5', 'a whole number'),
    ('filter', 'enabled', '1', 'true or false'),
  )
  def test_types_hold_in_a_tree_that_the_file_built(
    self, section, key, value, kind
  ):
    self.assert_told(
      f'FILE sets {section}.{key} to {value}; it must be {kind}',
      file=self.file(f'c = {{{section!r}: {{{key!r}: {value}}}}}'),
    )

  def test_string_for_a_number_names_the_line(self):
    self.assert_told(
      "FILE, line 4, `c.optim.lr = '1e-6'`: it must be a finite number",
      file=self.file("c.optim.lr = '1e-6'"),
    )


class FaultyFileTest(ConfigCase):
  @parameterized.parameters(
    ('c.optim.lr = foo', "NameError: name 'foo' is not defined"),
    (
      "open('/nope')",
      "FileNotFoundError: [Errno 2] No such file or directory: '/nope'",
    ),
    ('c.lock(); c.optim.lrr = 1', 'AttributeError: \'Key "lrr" does not'),
    (
      "raise ValueError('ablation must be one of a, b')",
      'ValueError: ablation must be one of a, b',
    ),
  )
  def test_what_the_file_raises_is_told_with_its_line(self, line, reason):
    file = self.file(line)
    with self.assertRaises(config.ConfigError) as caught:
      config.load(file)
    message = str(caught.exception)
    self.assertStartsWith(message, f'{file}, line 4, `{line}`: {reason}')
    self.assertNotIn('\n', message)

  def test_setting_an_unknown_key_of_a_locked_tree_names_the_nearest(self):
    self.assert_told(
      'FILE, line 5, `c.optim.lrr = 1`: optim.lrr: there is no such key; the '
      'nearest is optim.lr',
      file=self.file('c.lock()\nc.optim.lrr = 1'),
    )

  def test_syntax(self):
    self.assert_told(
      'FILE, line 4: invalid syntax', file=self.file('c.optim.lr =')
    )

  def test_argument_that_the_file_does_not_take(self):
    for arg in ('ablation', ''):
      self.assert_told(
        f'--config=FILE:{arg}: this file has no variants; write --config=FILE',
        file=f'{self.file("")}:{arg}',
      )

  def test_argument_that_the_file_needs(self):
    self.assert_told(
      '--config=FILE: this file needs a variant; write --config=FILE:VARIANT',
      file=self.file('', arg='arg'),
    )

  def test_nothing_returned(self):
    self.assert_told(
      'FILE: TypeError: get_config() must return a ConfigDict',
      file=self.file('return'),
    )

  def test_missing_file(self):
    self.assert_told(
      "--config=nope/x.py: there is no file 'nope/x.py'", file='nope/x.py'
    )

  def test_missing_file_names_the_nearest(self):
    with self.assertRaisesRegex(
      config.ConfigError,
      "no file 'configs/bose.py'; the nearest is configs/base",
    ):
      cwd = os.getcwd()
      os.chdir(_ROOT)
      try:
        config.load('configs/bose.py')
      finally:
        os.chdir(cwd)


class VariantTest(ConfigCase):
  _BODY = 'c.update_from_flattened_dict(variants.up_to(row, ROWS))'
  _ROWS = (
    'from configs import variants\n'
    'ROWS = {"plain": {"optim.lr": 1e-5, "seed": 1}, "fast": {"optim.lr": 1}}\n'
  )

  def _file(self) -> str:
    path = self.file(self._BODY, arg='row="plain"')
    file = pathlib.Path(path)
    file.write_text(self._ROWS + file.read_text())
    return path

  def test_a_row_has_the_changes_of_those_before_it(self):
    file = self._file()
    of = lambda c: (c.optim.lr, c.seed)
    self.assertEqual(of(config.load(f'{file}:plain')), (1e-5, 1))
    self.assertEqual(of(config.load(f'{file}:fast')), (1.0, 1))

  def test_without_an_argument_it_is_the_file_s_choice(self):
    self.assertEqual(config.load(self._file()).optim.lr, 1e-5)

  @parameterized.parameters(
    ('fats', "there is no variant 'fats'; the nearest is fast; there are "),
    ('zzz', "there is no variant 'zzz'; there are "),
    ('', "there is no variant ''; there are "),
  )
  def test_unknown_variant_names_the_nearest_and_all(self, name, message):
    file = self._file()
    self.assert_told(
      f'--config=FILE:{name}: {message}plain, fast', file=f'{file}:{name}'
    )


class ShippedConfigsTest(absltest.TestCase):
  def test_each_is_valid(self):
    files = sorted((_ROOT / 'configs').glob('[!_]*.py'))
    self.assertNotEmpty(files)
    for file in files:
      text = file.read_text()
      if 'def get_config' not in text:
        continue
      # The papers' configurations leave the data to the user.
      open_source = "c.data.source = ''" in text
      with self.subTest(file.name):
        config.load(
          str(file),
          ['--config.data.source=a.jsonl', '--config.eval.source=b.jsonl']
          * open_source,
        )


class NoDeviceTest(absltest.TestCase):
  def test_no_jax_is_imported(self):
    code = (
      'import sys\n'
      'from dapo_jax import config, main\n'
      'config.load("configs/base.py")\n'
      'assert "ml_collections" in sys.modules\n'
      'heavy = {"jax", "tensorflow", "flax", "numpy"} & set(sys.modules)\n'
      'assert not heavy, heavy\n'
    )
    subprocess.run([sys.executable, '-c', code], check=True, cwd=_ROOT)


if __name__ == '__main__':
  absltest.main()
