"""Tests of what a run shows on a terminal and in a log."""

import io
import logging
import os
import pty
import select
import sys

from absl.testing import absltest, parameterized

from dapo_jax.monitor import progress

_METRICS = {
  'reward/mean': -0.1234,
  'reward/first_round_correct_frac': 0.4331,
  'response/length_mean_tokens': 1812.4,
  'policy/entropy_nats': 0.41249,
  'filter/kept_prompts_count': 16,
  'filter/drawn_prompts_count': 24,
  'time/step_s': 12.34,
}
_SAMPLING = dict(
  tokens_count=45_123,
  tokens_per_s=3456.7,
  slots_busy_frac=0.934,
  kept=12,
  wanted=16,
  round_index=1,
)


class _Clock:
  def __init__(self):
    self.now_s = 1000.0

  def __call__(self):
    return self.now_s


class PlainTest(parameterized.TestCase):
  """On a stream that is not a terminal."""

  def setUp(self):
    super().setUp()
    self.stream = io.StringIO()
    self.clock = _Clock()

  def _progress(self, *, total_steps=10, first_step=0):
    return progress.Progress(
      total_steps=total_steps,
      first_step=first_step,
      stream=self.stream,
      clock=self.clock,
    )

  def _lines(self):
    return self.stream.getvalue().splitlines()

  def test_row_of_a_step(self):
    with self._progress() as shown:
      self.clock.now_s += 20.0
      shown.step(3, _METRICS)
    # One step took 20 s, nine are left: 180 s.
    self.assertEqual(
      self._lines(),
      [
        '  step   reward  accuracy  length  entropy       kept     time'
        '      left',
        '     3   -0.123     43.3%   1,812    0.412      16/24    12.3s'
        '      3:00',
      ],
    )

  def test_heading_is_printed_once(self):
    with self._progress() as shown:
      for step in range(5):
        shown.step(step, _METRICS)
    self.assertLen(self._lines(), 6)
    self.assertEqual(self.stream.getvalue().count('entropy'), 1)

  def test_rows_are_aligned_and_fit_80_columns(self):
    huge = dict(
      _METRICS,
      **{
        'response/length_mean_tokens': 20_480.0,
        'policy/entropy_nats': 11.93,
        'filter/kept_prompts_count': 1024,
        'filter/drawn_prompts_count': 5120,
        'time/step_s': 4000.0,
      },
    )
    with self._progress(total_steps=99_999) as shown:
      for step, metrics in ((0, {}), (99_998, huge)):
        self.clock.now_s += 4000.0
        shown.step(step, metrics)
    widths = {len(line) for line in self._lines()}
    self.assertLen(widths, 1)
    self.assertLessEqual(widths.pop(), 80)

  def test_absent_metrics_are_dashes(self):
    with self._progress(total_steps=1) as shown:
      self.clock.now_s += 2.0
      shown.step(0, {})
    # The time is the clock's where the metric is missing.
    self.assertEqual(
      self._lines()[1].split(),
      ['0', '-', '-', '-', '-', '-', '2.0s', '0.0s'],
    )

  def test_time_left_counts_from_where_the_run_resumed(self):
    with self._progress(first_step=7) as shown:
      self.clock.now_s += 5.0
      shown.step(7, _METRICS)
    # Two of ten are left at 5 s each.
    self.assertEqual(self._lines()[1].split()[-1], '10.0s')

  def test_time_left_forgets_the_first_step_which_compiles(self):
    with self._progress() as shown:
      for step, took_s in enumerate((100.0, 2.0, 4.0)):
        self.clock.now_s += took_s
        shown.step(step, _METRICS)
    # After three: the mean of 2 and 4 over the seven left.
    self.assertEqual(self._lines()[-1].split()[-1], '21.0s')

  @parameterized.parameters(9, 10, 11, 30)
  def test_time_left_never_comes_back_to_the_first_step(self, steps):
    with self._progress(total_steps=40) as shown:
      for step in range(steps):
        self.clock.now_s += 1.0 if step else 100.0
        shown.step(step, _METRICS)
    self.assertEqual(self._lines()[-1].split()[-1], f'{40 - steps}.0s')

  def test_sampling_is_reported_at_most_once_a_minute(self):
    with self._progress() as shown:
      for _ in range(130):
        self.clock.now_s += 1.0
        shown.rollout(**_SAMPLING)
    self.assertEqual(
      self._lines(),
      ['        round 2  kept 12/16  45.1k tokens at 3.5k/s  slots 93% busy']
      * 2,
    )

  @parameterized.parameters(
    (0.0, '0.0s'),
    (59.94, '59.9s'),
    (59.96, '1:00'),
    (3599.4, '59:59'),
    (3599.6, '1:00:00'),
    (86_399.0, '23:59:59'),
    (90_060.0, '1d 01h'),
  )
  def test_durations(self, seconds, expected):
    with self._progress() as shown:
      shown.step(0, {'time/step_s': seconds})
    cells = self._lines()[1]
    self.assertIn(f' {expected} ', cells)

  def test_note_is_a_line_without_control_codes(self):
    with self._progress() as shown:
      shown.note('[bold]saved\x1b[31m \x00\ud800')
    self.assertEqual(self._lines(), ['[bold]saved [31m   '])

  def test_stream_that_cannot_encode_a_note_still_gets_it(self):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding='ascii')
    with progress.Progress(total_steps=1, first_step=0, stream=stream) as shown:
      shown.note('± 1')
    self.assertEqual(raw.getvalue(), b'? 1\n')


class TerminalTest(absltest.TestCase):
  """On a pseudo-terminal."""

  def setUp(self):
    super().setUp()
    master, slave = pty.openpty()
    self.addCleanup(os.close, master)
    self._master = master
    self.stream = os.fdopen(slave, 'w', encoding='utf-8')
    self.addCleanup(self.stream.close)
    environment = {'TERM': 'xterm', 'COLUMNS': '80', 'LINES': '24'}
    self.enter_context(absltest.mock.patch.dict(os.environ, environment))

  def _written(self):
    self.stream.flush()
    written = b''
    while select.select([self._master], [], [], 0.05)[0]:
      written += os.read(self._master, 1 << 16)
    return written.decode('utf-8')

  def _progress(self, **kwargs):
    return progress.Progress(total_steps=10, stream=self.stream, **kwargs)

  def test_bar_starts_where_the_run_resumed_and_counts_steps(self):
    with self._progress(first_step=4) as shown:
      shown.rollout(**_SAMPLING)
      shown._live.refresh()
      before = self._written()
      shown.step(4, _METRICS)
      shown._live.refresh()
      after = self._written()
    self.assertIn('step 4/10', before)
    self.assertIn('round 2  kept 12/16', before)
    self.assertIn('step 5/10', after)
    # The step is over, and so is its sampling.
    self.assertNotIn('step 5/10', before)
    self.assertNotIn('round 2', after.split('step 5/10')[-1])

  def test_rows_are_those_of_a_log(self):
    log = io.StringIO()
    for stream in (self.stream, log):
      with progress.Progress(
        total_steps=10, first_step=0, stream=stream, clock=_Clock()
      ) as shown:
        shown.step(0, _METRICS)
    written = self._written()
    for line in log.getvalue().splitlines():
      self.assertIn(line, written)

  def test_brackets_of_a_note_are_not_markup(self):
    with self._progress(first_step=0) as shown:
      shown.note('[bold]8 x 200[/bold]')
      written = self._written()
    self.assertIn('[bold]8 x 200[/bold]', written)

  def test_log_messages_go_above_the_bar_and_back_afterwards(self):
    with absltest.mock.patch.object(sys, 'stderr', self.stream):
      handler = logging.StreamHandler(sys.stderr)
      logging.getLogger().addHandler(handler)
      self.addCleanup(logging.getLogger().removeHandler, handler)
      with self._progress(first_step=0):
        self.assertIsNot(handler.stream, self.stream)
        logging.getLogger('test').error('out of slots')
        self.assertIn('out of slots', self._written())
      self.assertIs(handler.stream, self.stream)

  def test_messages_for_a_file_are_left_alone(self):
    errors = io.StringIO()
    with absltest.mock.patch.object(sys, 'stderr', errors):
      with self._progress(first_step=0):
        print('to the file', file=sys.stderr)
    self.assertEqual(errors.getvalue(), 'to the file\n')

  def test_dumb_terminal_gets_plain_lines(self):
    with absltest.mock.patch.dict(os.environ, {'TERM': 'dumb'}):
      with self._progress(first_step=0) as shown:
        shown.rollout(**_SAMPLING)
        shown.step(0, _METRICS)
    written = self._written()
    self.assertNotIn('\x1b', written)
    self.assertLen(written.splitlines(), 2)


if __name__ == '__main__':
  absltest.main()
