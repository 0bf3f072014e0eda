"""Tests of `dapo_jax.data.build`."""

import contextlib
import io
import json
import pathlib
import tempfile
from unittest import mock

import pyarrow
from absl.testing import absltest, parameterized
from pyarrow import parquet

from dapo_jax.data import build, problem_sets, row_files, schemas, sources

_GSM8K = pathlib.Path(__file__).parent / 'data/problems/gsm8k_rows.jsonl'


def _merge(*rows, name='gsm8k'):
  """Returns what is kept of rows (problem, answer), at f:1, f:2..."""
  read = [
    (f'f:{i}', schemas.read({'problem': p, 'answer': a} | m, f'f:{i}'))
    for i, (p, a, *more) in enumerate(rows, start=1)
    for m in [more[0] if more else {}]
  ]
  return build.merge(read, problem_sets.SETS[name])


def _kept(merged):
  return [(p.messages[0].content, p.answer) for p in merged.problems]


class MergeTest(absltest.TestCase):
  def test_each_problem_is_kept_once_where_it_stood_first(self):
    # As DAPO-Math-17k repeats its problems 100 times: 3 x 100 - 3 go.
    merged = _merge(*[('b', '1'), ('a', '2'), ('c', '3')] * 100)
    self.assertEqual(_kept(merged), [('b', '1'), ('a', '2'), ('c', '3')])
    self.assertEqual((merged.read_count, merged.duplicates_count), (300, 297))

  def test_spaces_and_leading_zeros_make_no_other_problem(self):
    merged = _merge(('a  b', '025'), ('a\nb ', '25'))
    self.assertEqual(_kept(merged), [('a  b', '025')])
    self.assertEmpty(merged.conflicts)

  def test_integers_are_written_as_a_response_would(self):
    # DAPO's scorer compares texts: to it 25 is wrong where 025 is right.
    merged = _merge(('a', '025'), ('b', '$7$'), name='aime24')
    self.assertEqual(_kept(merged), [('a', '25'), ('b', '7')])

  def test_a_problem_with_two_answers_goes_with_all_its_rows(self):
    merged = _merge(('a', '1'), ('b', '5'), ('a', '2'), ('a', '1'), ('b', '5'))
    self.assertEqual(_kept(merged), [('b', '5')])
    # Of 5 rows: 3 of a conflict, 1 is a duplicate, 1 is kept.
    self.assertEqual(
      (merged.conflicting_count, merged.duplicates_count), (3, 1)
    )
    self.assertEqual(merged.conflicts, ['1 (f:1), 2 (f:3)'])

  def test_rows_that_do_not_belong_are_counted_by_reason(self):
    merged = _merge(
      ('a', '1', {'level': 2}),
      ('b', '1', {'level': 1}),
      ('c', '1', {'level': 'Level ?'}),
      ('d', '1', {'level': 3}),
      name='math_levels_3_5',
    )
    self.assertEqual(_kept(merged), [('d', '1')])
    self.assertEqual(
      merged.dropped_counts, {'level below 3': 2, 'level unknown': 1}
    )

  def test_the_counts_add_up(self):
    merged = _merge(
      ('a', '1'), ('a', '1'), ('b', '1'), ('b', '2'), ('c', 'x'), name='amc23'
    )
    self.assertEqual(
      merged.read_count,
      merged.duplicates_count
      + merged.conflicting_count
      + sum(merged.dropped_counts.values())
      + len(merged.problems),
    )


class RunTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.out = self.folder / 'out'

  def _jsonl(self, *rows):
    file = self.folder / 'rows.jsonl'
    file.write_text('\n'.join(map(json.dumps, rows)))
    return str(file)

  def _parquet(self, *rows):
    file = self.folder / 'rows.parquet'
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file)
    return str(file)

  def _run(self, name, *files, **options):
    """Returns what is printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      build.run(name, files, str(self.out), **options)
    return printed.getvalue()

  def _verl(self, problem, answer):
    first = 'Solve it. The last line is Answer: $Answer.'
    text = f'{first}\n\n{problem}\n\nWrite it after "Answer:".'
    return {
      'data_source': 'math_dapo',
      'prompt': [{'content': text, 'role': 'user'}],
      'reward_model': {'ground_truth': answer, 'style': 'rule'},
    }

  def test_what_is_built_is_what_is_loaded(self):
    self._run('gsm8k', str(_GSM8K))
    built, read = sources.load(self.out), sources.load(_GSM8K)
    self.assertEqual(
      [(p.messages, p.gold, p.solution) for p in built],
      [(p.messages, p.gold, p.solution) for p in read],
    )
    self.assertLen(built, 3)
    self.assertEqual({p.dataset for p in built}, {'gsm8k'})

  def test_the_stored_id_is_that_of_the_loaded_prompt(self):
    turns = [
      {'role': 'system', 'content': 'Be brief.'},
      {'role': 'user', 'content': 'p'},
    ]
    file = self._jsonl(
      {'messages': turns, 'answer': '1'}, {'problem': 'q', 'answer': '2'}
    )
    self._run('math500', file)
    stored = [row for _, row in row_files.rows(self.out, flags='')]
    loaded = sources.load(self.out)
    self.assertEqual([r['id'] for r in stored], [p.id for p in loaded])
    self.assertLen(loaded[0].messages, 2)
    # Whence a row came, where it does not say: its file.
    self.assertEqual([r['source'] for r in stored], ['rows', 'rows'])

  def test_says_what_became_of_the_rows(self):
    rows = [self._verl('a', '1'), self._verl('b', '2'), self._verl('c', 'x')]
    file = self._parquet(*rows * 100)
    self.assertEqual(
      self._run('dapo_math_17k', file),
      'dapo_math_17k: DAPO-Math-17k, the training problems of DAPO\n'
      '      300 rows read from 1 file\n'
      '      198 dropped: duplicates\n'
      '        0 dropped: conflicting answers\n'
      '      100 dropped: answer no integer\n'
      '        2 problems kept\n'
      '    17917 problems are in it as published\n'
      f'wrote {self.out}/dapo_math_17k/1.0.0, for --config.data.source or '
      '--config.eval.source\n',
    )
    self.assertEqual(
      [p.messages[0].content for p in sources.load(self.out)], ['a', 'b']
    )

  def test_a_union_reads_data_sets_that_were_built(self):
    self._run('dapo_math_17k', self._parquet(self._verl('a', '1')))
    math = self._jsonl(
      {'problem': 'a', 'answer': '1', 'level': 'Level 5'},
      {'problem': 'b', 'solution': r'\boxed{x}', 'level': 'Level 3'},
      {'problem': 'c', 'solution': r'\boxed{y}', 'level': 'Level 2'},
    )
    self._run('dcpo_train', str(self.out / 'dapo_math_17k'), math)
    found = [
      (row['problem'], row['answer'], row['source'])
      for _, row in row_files.rows(self.out / 'dcpo_train', flags='')
    ]
    self.assertEqual(found, [('a', '1', 'math_dapo'), ('b', 'x', 'rows')])

  def test_conflicting_answers_are_an_error_or_dropped_and_listed(self):
    file = self._jsonl(
      {'problem': 'a', 'answer': '1'},
      {'problem': 'a', 'answer': '2'},
      {'problem': 'b', 'answer': '3'},
    )
    with self.assertRaisesRegex(
      ValueError,
      r'1 have several: 1 \(.*rows\.jsonl:1\), 2 \(.*rows\.jsonl:2\); '
      r'correct --from, or drop them with --conflicts=drop',
    ):
      self._run('math500', file)
    self.assertFalse(self.out.exists())
    printed = self._run('math500', file, conflicts='drop')
    self.assertIn('        2 dropped: conflicting answers\n', printed)
    self.assertRegex(printed, r'conflict: 1 \(.*:1\), 2 \(.*:2\)\n')
    self.assertLen(sources.load(self.out), 1)

  def test_what_is_there_is_not_written_over(self):
    self._run('gsm8k', str(_GSM8K))
    with self.assertRaisesRegex(ValueError, 'exists already; .* change --out'):
      self._run('gsm8k', str(_GSM8K))

  @parameterized.parameters('file', 'file/below')
  def test_a_folder_that_can_not_be_is_told_before_a_file_is_read(self, out):
    (self.folder / 'file').write_text('mine')
    self.out = self.folder / out
    with self.assertRaisesRegex(
      ValueError, r'/file must be a folder that can be written to; change --out'
    ):
      self._run('gsm8k', str(self.folder / 'no such file'))

  def test_a_full_disk_is_told(self):
    error = OSError('No space left on device')
    with (
      mock.patch.object(build.tfds_folder, 'write', side_effect=error),
      self.assertRaisesRegex(
        ValueError, r'gsm8k/1\.0\.0 cannot be written: No space .* --out'
      ),
    ):
      self._run('gsm8k', str(_GSM8K))

  def test_what_a_killed_build_leaves_is_no_data_set(self):
    self._run('gsm8k', str(_GSM8K))
    built = self.out / 'gsm8k' / '1.0.0'
    half = built.with_name('incomplete.ABC123_1.0.0')
    built.rename(half)
    with self.assertRaisesRegex(ValueError, 'got none'):
      sources.load(self.out)
    self._run('gsm8k', str(_GSM8K))
    self.assertLen(sources.load(self.out), 3)

  def test_a_set_of_nothing_is_an_error_with_the_reasons(self):
    file = self._jsonl({'problem': 'a', 'answer': 'x'})
    with self.assertRaisesRegex(
      ValueError, r'aime24 is left of 1 rows \(1 answer no integer\)'
    ):
      self._run('aime24', file)

  def test_a_bad_row_names_file_row_and_field(self):
    file = self._parquet(self._verl('a', '1'), self._verl('b', None))
    with self.assertRaisesRegex(
      ValueError, r'rows\.parquet, row 2: field `reward_model\.ground_truth`'
    ):
      self._run('aime24', file)

  def test_an_unknown_name_is_an_error_that_lists_the_known(self):
    with self.assertRaisesRegex(
      ValueError, r"'aime2', did you mean aime2[45]\?; there are dapo_math_17k,"
    ):
      self._run('aime2', 'x')


if __name__ == '__main__':
  absltest.main()
