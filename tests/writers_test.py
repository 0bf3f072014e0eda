"""Tests of the JSON-lines files of a run."""

import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

import full_disk
from dapo_jax.monitor import writers


class WriterTestCase(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / 'run/x.jsonl'

  def lines(self):
    return [json.loads(line) for line in self.path.read_bytes().splitlines()]


class ConfigTest(WriterTestCase):
  def test_the_configuration_can_be_read_and_is_written_again(self):
    for lr in (0.1, 0.2):
      config = {'optim': {'lr': lr, 'clip': None}, 'seed': 0}
      writers.write_config(self.path, config)
      self.assertEqual(json.loads(self.path.read_text()), config)
    self.assertLen(list(self.path.parent.iterdir()), 1)


class JsonlWriterTest(WriterTestCase):
  def _write(self, *steps):
    with writers.JsonlWriter(self.path) as writer:
      for step in steps:
        writer.write(step, {'reward/mean': step / 2})

  def test_one_object_a_step(self):
    with writers.JsonlWriter(self.path) as writer:
      writer.write(0, {'reward/mean': -0.5, 'filter/rounds_count': 2})
      writer.write(1, {})
    self.assertEqual(
      self.path.read_text(),
      '{"step": 0, "reward/mean": -0.5, "filter/rounds_count": 2}\n'
      '{"step": 1}\n',
    )

  def test_numpy_numbers_are_numbers(self):
    with writers.JsonlWriter(self.path) as writer:
      metrics = {
        'reward/mean': np.float32(0.5),
        'filter/rounds_count': np.int64(3),
      }
      writer.write(0, metrics)
    self.assertEqual(
      self.lines(), [{'step': 0, 'reward/mean': 0.5, 'filter/rounds_count': 3}]
    )
    self.assertIsInstance(self.lines()[0]['filter/rounds_count'], int)

  def test_line_can_be_read_before_the_file_is_closed(self):
    with writers.JsonlWriter(self.path) as writer:
      writer.write(0, {'reward/mean': 1.0})
      self.assertLen(self.lines(), 1)

  def test_unknown_metric_is_refused_and_nothing_written(self):
    with writers.JsonlWriter(self.path) as writer:
      with self.assertRaisesRegex(ValueError, 'reward/meen'):
        writer.write(0, {'reward/meen': 1.0})
    self.assertEqual(self.lines(), [])

  @parameterized.parameters(np.nan, np.inf, -np.inf)
  def test_value_that_is_not_finite_is_refused_by_name(self, value):
    with writers.JsonlWriter(self.path) as writer:
      with self.assertRaisesRegex(ValueError, 'policy/loss'):
        writer.write(0, {'reward/mean': 1.0, 'policy/loss': value})
    self.assertEqual(self.lines(), [])

  @parameterized.parameters(3, 2)
  def test_step_is_written_once_and_in_order(self, step):
    with writers.JsonlWriter(self.path) as writer:
      writer.write(3, {})
      with self.assertRaisesRegex(ValueError, 'already holds step 3'):
        writer.write(step, {})
      writer.write(4, {})
    self.assertEqual([line['step'] for line in self.lines()], [3, 4])

  def test_order_is_kept_over_reopening(self):
    self._write(0, 1)
    with self.assertRaisesRegex(ValueError, 'already holds step 1'):
      self._write(1)
    self._write(2)
    self.assertEqual([line['step'] for line in self.lines()], [0, 1, 2])

  def test_resumed_run_writes_its_steps_again(self):
    self._write(0, 1, 2, 3, 10)
    with writers.JsonlWriter(self.path) as writer:
      writer.keep_until(2)
      writer.write(2, {'reward/mean': 7.0})
    self.assertEqual(
      self.lines(),
      [
        {'step': 0, 'reward/mean': 0.0},
        {'step': 1, 'reward/mean': 0.5},
        {'step': 2, 'reward/mean': 7.0},
      ],
    )

  @parameterized.parameters((0, []), (1, [0]), (5, [0, 1, 4]), (99, [0, 1, 4]))
  def test_keep_until_drops_the_step_and_later_ones(self, step, kept):
    self._write(0, 1, 4)
    with writers.JsonlWriter(self.path) as writer:
      writer.keep_until(step)
    self.assertEqual([line['step'] for line in self.lines()], kept)

  @parameterized.parameters(b'{"step": 2, "rew', b'{"st', b'{"step": 2}')
  def test_line_torn_by_a_kill_is_dropped(self, torn):
    self._write(0, 1)
    with self.path.open('ab') as file:
      file.write(torn)
    self._write(2)
    self.assertEqual([line['step'] for line in self.lines()], [0, 1, 2])

  def test_foreign_file_is_refused_with_its_line_and_left_alone(self):
    self._write(0)
    with self.path.open('ab') as file:
      file.write(b'{"loss": 1.0}\n')
    before = self.path.read_bytes()
    with self.assertRaisesRegex(ValueError, r'x\.jsonl, line 2'):
      writers.JsonlWriter(self.path)
    self.assertEqual(self.path.read_bytes(), before)


class LastLineTest(WriterTestCase):
  def test_is_the_last_whole_one(self):
    self.assertEqual(writers.last_line(self.path), {})
    with writers.JsonlWriter(self.path) as writer:
      self.assertEqual(writers.last_line(self.path), {})
      writer.write(3, {'reward/mean': 0.5})
    with open(self.path, 'a') as file:
      file.write('{"step": 4, "rew')
    self.assertEqual(
      writers.last_line(self.path), {'step': 3, 'reward/mean': 0.5}
    )

  def test_a_file_of_another_kind_has_none(self):
    self.path.parent.mkdir()
    self.path.write_text('hello\n')
    self.assertEqual(writers.last_line(self.path), {})


class SampleWriterTest(WriterTestCase):
  def test_one_object_a_row(self):
    with writers.SampleWriter(self.path) as writer:
      writer.write(0, [{'text': 'a'}, {'text': 'b', 'reward': 1.0}])
      writer.write(1, [])
      writer.write(2, [{'text': 'c'}])
    self.assertEqual(
      self.lines(),
      [
        {'step': 0, 'text': 'a'},
        {'step': 0, 'text': 'b', 'reward': 1.0},
        {'step': 2, 'text': 'c'},
      ],
    )

  @parameterized.parameters('é\n"\\', '\x00\x1b', '\ud800 alone', '\u2028')
  def test_any_text_survives_in_one_line(self, text):
    with writers.SampleWriter(self.path) as writer:
      writer.write(0, [{'text': text}])
    self.assertEqual(self.path.read_bytes().count(b'\n'), 1)
    self.assertEqual(self.lines()[0]['text'], text)

  def test_keep_until_drops_all_rows_of_a_step(self):
    with writers.SampleWriter(self.path) as writer:
      for step in range(3):
        writer.write(step, [{'text': 'a'}, {'text': 'b'}])
      writer.keep_until(1)
      writer.write(1, [{'text': 'c'}])
    got = [(line['step'], line['text']) for line in self.lines()]
    self.assertEqual(got, [(0, 'a'), (0, 'b'), (1, 'c')])

  def test_earlier_step_is_refused(self):
    with writers.SampleWriter(self.path) as writer:
      writer.write(3, [{'text': 'a'}])
      with self.assertRaisesRegex(ValueError, 'already holds step 3'):
        writer.write(2, [{'text': 'b'}])

  def test_row_with_its_own_step_is_refused(self):
    with writers.SampleWriter(self.path) as writer:
      with self.assertRaisesRegex(ValueError, 'named step'):
        writer.write(3, [{'step': 4}])


class NoWriterTest(WriterTestCase):
  def test_it_writes_nothing_whatever_it_is_given(self):
    with writers.NoWriter() as writer:
      writer.keep_until(3)
      writer.write(3, {'no/such_metric': float('nan')})
      writer.write(1, [{'step': 1}])
    self.assertEqual([*self.path.parents[1].iterdir()], [])


class FullDiskTest(WriterTestCase):
  def assert_told(self, path):
    return self.assertRaisesRegex(
      writers.WriteError,
      rf'{path} could not be written \(File too large\); .* the same command$',
    )

  def test_a_line_without_room_is_told_and_leaves_no_half(self):
    with writers.JsonlWriter(self.path) as writer:
      writer.write(0, {'reward/mean': 0.5})
      whole = self.path.read_bytes()
      # Some bytes of the next line would fit.
      with full_disk.at(len(whole) + 9), self.assert_told('x.jsonl'):
        writer.write(1, {'reward/mean': 0.5})
      self.assertEqual(self.path.read_bytes(), whole)
      # With room again the same step can be written.
      writer.write(1, {'reward/mean': 1.0})
    self.assertEqual([row['reward/mean'] for row in self.lines()], [0.5, 1.0])

  def test_so_are_samples(self):
    with writers.SampleWriter(self.path) as writer:
      with full_disk.at(100), self.assert_told('x.jsonl'):
        writer.write(1, [{'text': 'a' * 60}, {'text': 'b' * 60}])
    self.assertEqual(self.path.read_bytes(), b'')

  def test_a_configuration_without_room_leaves_the_old_one(self):
    writers.write_config(self.path, {'seed': 0})
    with full_disk.at(20), self.assert_told('x.jsonl'):
      writers.write_config(self.path, {'seed': 1, 'text': 'a' * 20})
    self.assertEqual(json.loads(self.path.read_text()), {'seed': 0})

  def test_a_folder_that_cannot_be_made_is_told(self):
    self.path.parent.write_text('a file')
    for write in (
      writers.JsonlWriter,
      writers.SampleWriter,
      lambda path: writers.write_config(path, {}),
    ):
      with self.assertRaisesRegex(writers.WriteError, 'x.jsonl could not be'):
        write(self.path)


if __name__ == '__main__':
  absltest.main()
