"""Adds up what the sampler and the graders did in a rollout."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dapo_jax.data import records
from dapo_jax.rewards import reward, verifiers
from dapo_jax.rollout import grading
from dapo_jax.rollout import shares as shares_lib
from dapo_jax.sampling import scheduler


class Totals(NamedTuple):
  """Sums of a rollout."""

  tokens: int = 0  # sampled, those that were lost left out
  lost_tokens: int = 0
  evicted: int = 0
  steps: int = 0
  prefills: int = 0
  slot_steps: int = 0
  seconds: float = 0.0  # of decoding and prefilling
  host_s: float = 0.0  # of these the device waited
  judging_s: float = 0.0  # of all threads
  waited_s: float = 0.0  # with nothing left to do but wait for verdicts
  timeouts: int = 0  # answers that could not be compared in time
  errors: int = 0  # nor for another reason

  @property
  def tokens_per_s(self) -> float:
    """Sampled tokens a second of decoding and prefilling."""
    return self.tokens / self.seconds if self.seconds else 0.0

  @property
  def slots_busy_frac(self) -> float:
    """Share of slot-steps that made a token, of no use later or not."""
    made = self.tokens + self.lost_tokens
    return made / self.slot_steps if self.slot_steps else 0.0

  @property
  def lost_frac(self) -> float:
    """Share of the tokens made that had to be made again."""
    made = self.tokens + self.lost_tokens
    return self.lost_tokens / made if made else 0.0

  def metrics(self) -> dict[str, int | float]:
    """Returns the `sampler/` metrics, and times and failures of grading."""
    return {
      'reward/verify_timeout_count': self.timeouts,
      'reward/verify_error_count': self.errors,
      'sampler/tokens_per_s': self.tokens_per_s,
      'sampler/slots_busy_frac': self.slots_busy_frac,
      'sampler/decode_steps_count': self.steps,
      'sampler/prefill_count': self.prefills,
      'sampler/evicted_count': self.evicted,
      'sampler/lost_tokens_frac': self.lost_frac,
      'time/sampler_host_frac': (
        self.host_s / self.seconds if self.seconds else 0.0
      ),
      'time/reward_s': self.judging_s,
      'time/reward_wait_s': self.waited_s,
    }


# Of several processes, those of the slowest; all others are sums.
_SLOWEST = ('seconds', 'host_s', 'waited_s')
# What all processes of an engine count alike.
_OF_ENGINE = Totals._fields[: Totals._fields.index('judging_s')]


def of_all(own: Totals, shares: shares_lib.Shares) -> Totals:
  """Returns the totals of all processes; each calls it with its own."""
  job = shares.job
  if job.count == 1:
    return own
  if job.index % shares.hosts:
    own = own._replace(**dict.fromkeys(_OF_ENGINE, 0))
  found = job.gather(np.array(own, np.float64), what='the end of the rollout')
  sums = dict(zip(Totals._fields, found.sum(axis=0), strict=True))
  most = dict(zip(Totals._fields, found.max(axis=0), strict=True))
  kinds = {name: type(zero) for name, zero in Totals()._asdict().items()}
  return Totals(
    **{
      name: kind(most[name] if name in _SLOWEST else sums[name])
      for name, kind in kinds.items()
    }
  )


class Meter:
  """Totals of the rollout under way."""

  def __init__(self, unjudged: Callable[[], verifiers.Counts]):
    """Begins at zero.

    Args:
      unjudged: gives how many answers could not be compared so far.
    """
    self._unjudged = unjudged
    self._unjudged_before = unjudged()
    self._judging_lock = threading.Lock()
    self._judging_s = 0.0
    self._totals = Totals()

  def add(self, report: scheduler.ChunkReport) -> None:
    """Adds one decode chunk."""
    t = self._totals
    self._totals = t._replace(
      tokens=t.tokens + report.tokens - report.lost_tokens,
      lost_tokens=t.lost_tokens + report.lost_tokens,
      evicted=t.evicted + report.evicted,
      steps=t.steps + report.steps,
      prefills=t.prefills + report.prefills,
      slot_steps=t.slot_steps + report.steps * report.slots,
      seconds=t.seconds + report.seconds,
      host_s=t.host_s + report.host_s,
    )

  def add_wait(self, seconds: float) -> None:
    """Adds seconds in which nothing was left to do but wait for verdicts."""
    self._totals = self._totals._replace(
      waited_s=self._totals.waited_s + seconds
    )

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

  def totals(self) -> Totals:
    """Returns the totals so far, of this process."""
    now, before = self._unjudged(), self._unjudged_before
    return self._totals._replace(
      judging_s=self._judging_s,
      timeouts=now.timeouts - before.timeouts,
      errors=now.errors - before.errors,
    )
