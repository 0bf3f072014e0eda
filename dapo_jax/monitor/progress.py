"""What a person sees of a run: a table that grows and a line that moves.

On a terminal, one permanent row a rollout step stands above a live bar; on
anything else, the same rows as plain lines without control codes. Host only.
"""

import collections
import contextlib
import io
import logging
import numbers
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from rich import console as rich_console
from rich import live as rich_live
from rich import progress_bar
from rich import table as rich_table
from rich import text as rich_text

# Steps whose times make the estimate of the time left.
_RECENT_STEPS = 10
# Where no line can move, sampling is reported at most this often, [s].
_PLAIN_EVERY_S = 60.0

# Columns of the table: heading and width.
_COLUMNS = (
  ('step', 6),
  ('reward', 9),
  ('accuracy', 10),
  ('length', 8),
  ('entropy', 9),
  ('kept', 11),
  ('time', 9),
  ('left', 10),
)


class Progress:
  """Shows how a run goes; a context manager.

  The bar counts rollout steps: it starts at `first_step` and moves by one at
  each call of `step`. Refills of dynamic sampling are rounds of one step and
  move only the live line.
  """

  def __init__(
    self,
    *,
    total_steps: int,
    first_step: int,
    stream: io.TextIOBase,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Prepares to show the steps after `first_step` on `stream`."""
    self._total = total_steps
    self._done = first_step
    self._shown_count = 0
    self._stream = stream
    self._clock = clock
    self._step_times_s = collections.deque(maxlen=_RECENT_STEPS)
    self._started = self._last_step = self._last_plain = clock()
    self._has_header = False
    self._sampling = ''
    self._console = rich_console.Console(file=stream, highlight=False)
    self._live: rich_live.Live | None = None
    self._live_parts = contextlib.ExitStack()

  def __enter__(self) -> 'Progress':
    self._started = self._last_step = self._last_plain = self._clock()
    if self._stream.isatty() and not self._console.is_dumb_terminal:
      stderr = sys.stderr
      self._live = self._live_parts.enter_context(
        rich_live.Live(
          get_renderable=self._render,
          console=self._console,
          refresh_per_second=4,
          transient=True,
          redirect_stdout=sys.stdout.isatty(),
          redirect_stderr=stderr.isatty(),
        )
      )
      self._live_parts.enter_context(_logs_moved(stderr, sys.stderr))
    return self

  def __exit__(self, *exception: object) -> None:
    self._live_parts.close()
    self._live = None

  def rollout(
    self,
    *,
    tokens_count: int,
    tokens_per_s: numbers.Real,
    slots_busy_frac: numbers.Real,
    kept: int,
    wanted: int,
    round_index: int,
  ) -> None:
    """Shows how sampling stands, in the live line.

    Args:
      tokens_count: response tokens sampled in this step so far.
      tokens_per_s: speed of sampling.
      slots_busy_frac: share of slots that hold an unfinished sequence.
      kept: groups kept by the filter so far, [prompts].
      wanted: groups that a step trains on, [prompts].
      round_index: generation round, from 0.
    """
    self._sampling = (
      f'round {round_index + 1}  kept {kept:,}/{wanted:,}  '
      f'{_short(tokens_count)} tokens at {_short(tokens_per_s)}/s  '
      f'slots {slots_busy_frac:.0%} busy'
    )
    if self._live is None:
      now = self._clock()
      if now - self._last_plain >= _PLAIN_EVERY_S:
        self._last_plain = now
        self._print(f'{"":>{_COLUMNS[0][1]}}  {self._sampling}')

  def step(self, step: int, metrics: Mapping[str, numbers.Real]) -> None:
    """Adds the row of a finished step and moves the bar by one."""
    now = self._clock()
    self._step_times_s.append(now - self._last_step)
    self._last_step = self._last_plain = now
    self._done += 1
    self._shown_count += 1
    self._sampling = ''
    if not self._has_header:
      self._has_header = True
      self._print(_line([heading for heading, _ in _COLUMNS]), style='bold')
    self._print(_line(self._cells(step, metrics)))

  def note(self, text: str) -> None:
    """Adds a permanent line; control characters in it become blanks."""
    self._print(
      ''.join(c if c.isprintable() or c == '\n' else ' ' for c in text)
    )

  def _cells(self, step: int, metrics: Mapping[str, numbers.Real]) -> list[str]:
    left_s = self._left_s()
    kept = metrics.get('filter/kept_prompts_count')
    drawn = metrics.get('filter/drawn_prompts_count')
    return [
      str(step),
      _cell(metrics.get('reward/mean'), '.3f'),
      _cell(metrics.get('reward/first_round_correct_frac'), '.1%'),
      _cell(metrics.get('response/length_mean_tokens'), ',.0f'),
      _cell(metrics.get('policy/entropy_nats'), '.3f'),
      '-' if kept is None or drawn is None else f'{kept:.0f}/{drawn:.0f}',
      _duration(metrics.get('time/step_s', self._step_times_s[-1])),
      '-' if left_s is None else _duration(left_s),
    ]

  def _left_s(self) -> float | None:
    """Time to the end, from recent steps; None before the first.

    The first step of a process compiles: once there is another, it is left
    out.
    """
    times_s = list(self._step_times_s)
    if not times_s:
      return None
    if 1 < self._shown_count <= _RECENT_STEPS:
      times_s = times_s[1:]
    return statistics.fmean(times_s) * max(0, self._total - self._done)

  def _print(self, line: str, *, style: str = '') -> None:
    encoding = self._stream.encoding or 'utf-8'
    line = line.encode(encoding, 'replace').decode(encoding)
    if self._live is None:
      print(line, file=self._stream, flush=True)
    else:
      # Text, not markup: a note may hold brackets.
      self._console.print(rich_text.Text(line, style=style), soft_wrap=True)

  def _render(self) -> rich_console.Group:
    left_s = self._left_s()
    bar = rich_table.Table.grid(padding=(0, 1), expand=True)
    for ratio in (None, 1, None):
      bar.add_column(ratio=ratio, no_wrap=True)
    bar.add_row(
      f'step {self._done}/{self._total}',
      progress_bar.ProgressBar(self._total, self._done),
      f'{_duration(self._clock() - self._started)} gone'
      + ('' if left_s is None else f', {_duration(left_s)} left'),
    )
    since_s = _duration(self._clock() - self._last_step)
    return rich_console.Group(
      bar,
      rich_text.Text(
        f'{since_s:>8}  {self._sampling}', style='dim', no_wrap=True
      ),
    )


@contextlib.contextmanager
def _logs_moved(old: io.TextIOBase, new: io.TextIOBase) -> Iterator[None]:
  """Makes log handlers that write to `old` write to `new` for a while.

  The live line replaces sys.stderr by a stream that prints above it, but a
  handler has kept the one it found; its messages would be overwritten.
  """
  # absl keeps its stream handler inside another one.
  handlers = [
    getattr(handler, 'python_handler', handler)
    for handler in logging.getLogger().handlers
  ]
  moved = [h for h in handlers if getattr(h, 'stream', None) is old]
  for handler in moved:
    handler.setStream(new)
  try:
    yield
  finally:
    for handler in moved:
      handler.setStream(old)


def _line(cells: list[str]) -> str:
  """Cells in the columns' widths; they keep a blank between them."""
  return ''.join(
    f' {cell:>{width - 1}}'
    for cell, (_, width) in zip(cells, _COLUMNS, strict=True)
  )


def _cell(value: numbers.Real | None, spec: str) -> str:
  return '-' if value is None else format(value, spec)


def _duration(seconds: numbers.Real) -> str:
  """12.3s below a minute, then 1:02, then 3:04:05, then 2d 03h."""
  if seconds < 59.95:
    return f'{seconds:.1f}s'
  minutes, second = divmod(round(seconds), 60)
  hours, minute = divmod(minutes, 60)
  if hours == 0:
    return f'{minute}:{second:02}'
  if hours < 24:
    return f'{hours}:{minute:02}:{second:02}'
  days, hour = divmod(hours, 24)
  return f'{days}d {hour:02}h'


def _short(number: numbers.Real) -> str:
  """Three digits and a magnitude: 999, 45.1k, 104.9M."""
  for magnitude, suffix in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
    if number >= magnitude:
      return f'{number / magnitude:.1f}{suffix}'
  return f'{number:.0f}'
