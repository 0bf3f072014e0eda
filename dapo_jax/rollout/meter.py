"""Adds up what the sampler and the graders did in a rollout."""

import threading
import time
from collections.abc import Callable

from dapo_jax.data import records
from dapo_jax.rewards import reward, verifiers
from dapo_jax.rollout import grading
from dapo_jax.sampling import scheduler


class Meter:
  """Totals of the rollout under way."""

  def __init__(self, unjudged: Callable[[], verifiers.Counts]):
    """Begins at zero.

    Args:
      unjudged: gives how many answers could not be compared so far.
    """
    self._unjudged = unjudged
    self._unjudged_before = unjudged()
    self.tokens = 0
    self._judging_s = 0.0
    self._judging_lock = threading.Lock()
    self._waited_s = 0.0
    self._steps = 0
    self._prefills = 0
    self._slot_steps = 0
    self._evicted = 0
    self._lost_tokens = 0
    self._seconds = 0.0
    self._host_s = 0.0

  def add(self, report: scheduler.ChunkReport) -> None:
    """Adds one decode chunk."""
    self.tokens += report.tokens - report.lost_tokens
    self._evicted += report.evicted
    self._lost_tokens += report.lost_tokens
    self._steps += report.steps
    self._prefills += report.prefills
    self._slot_steps += report.steps * report.slots
    self._seconds += report.seconds
    self._host_s += report.host_s

  def add_wait(self, seconds: float) -> None:
    """Adds seconds in which nothing was left to do but wait for verdicts."""
    self._waited_s += seconds

  def timed(self, judge: grading.Judge) -> grading.Judge:
    """Returns the same judge with its time added up, of all threads."""

    def timed_judge(prompt: records.Prompt, text: str, length_tokens: int):
      begin = time.perf_counter()
      verdict: reward.Judgement = judge(prompt, text, length_tokens)
      seconds = time.perf_counter() - begin
      with self._judging_lock:
        self._judging_s += seconds
      return verdict

    return timed_judge

  @property
  def tokens_per_s(self) -> float:
    """Sampled tokens a second of decoding and prefilling."""
    return self.tokens / self._seconds if self._seconds else 0.0

  @property
  def slots_busy_frac(self) -> float:
    """Share of slot-steps that made a token, of no use later or not."""
    made = self.tokens + self._lost_tokens
    return made / self._slot_steps if self._slot_steps else 0.0

  @property
  def lost_frac(self) -> float:
    """Share of the tokens made that had to be made again."""
    made = self.tokens + self._lost_tokens
    return self._lost_tokens / made if made else 0.0

  def metrics(self) -> dict[str, int | float]:
    """Returns the `sampler/` metrics, and times and failures of grading."""
    now, before = self._unjudged(), self._unjudged_before
    return {
      'reward/verify_timeout_count': now.timeouts - before.timeouts,
      'reward/verify_error_count': now.errors - before.errors,
      'sampler/tokens_per_s': self.tokens_per_s,
      'sampler/slots_busy_frac': self.slots_busy_frac,
      'sampler/decode_steps_count': self._steps,
      'sampler/prefill_count': self._prefills,
      'sampler/evicted_count': self._evicted,
      'sampler/lost_tokens_frac': self.lost_frac,
      'time/sampler_host_frac': (
        self._host_s / self._seconds if self._seconds else 0.0
      ),
      'time/reward_s': self._judging_s,
      'time/reward_wait_s': self._waited_s,
    }
