"""Tests of `rollout.meter`."""

import threading
import time
from unittest import mock

from absl.testing import absltest

import fake_jobs
import tiny_groups
from dapo_jax.monitor import catalogue
from dapo_jax.rewards import reward, verifiers
from dapo_jax.rollout import meter
from dapo_jax.rollout import shares as shares_lib
from dapo_jax.sampling import scheduler


def _report(**changes):
  return scheduler.ChunkReport(
    **{
      'steps': 10,
      'tokens': 30,
      'prefills': 2,
      'slots': 4,
      'seconds': 0.5,
      **changes,
    }
  )


class MeterTest(absltest.TestCase):
  def test_chunks_add_up(self):
    totals = meter.Meter(lambda: verifiers.Counts(0, 0))
    totals.add(_report())
    totals.add(_report(steps=5, tokens=5, prefills=0, seconds=1.5, host_s=0.5))
    self.assertEqual(totals.totals().tokens, 35)
    found = totals.totals().metrics()
    self.assertEqual(found['sampler/decode_steps_count'], 15)
    self.assertEqual(found['sampler/prefill_count'], 2)
    # 35 tokens in 2 s, in 15 steps of 4 slots.
    self.assertEqual(found['sampler/tokens_per_s'], 17.5)
    self.assertEqual(found['sampler/slots_busy_frac'], 35 / 60)
    self.assertEqual(found['time/sampler_host_frac'], 0.25)
    catalogue.check(found)

  def test_tokens_that_were_lost_are_none(self):
    totals = meter.Meter(lambda: verifiers.Counts(0, 0))
    totals.add(_report())
    totals.add(_report(evicted=2, lost_tokens=12))
    self.assertEqual(totals.totals().tokens, 48)
    found = totals.totals().metrics()
    self.assertEqual(found['sampler/tokens_per_s'], 48)
    self.assertEqual(found['sampler/evicted_count'], 2)
    self.assertEqual(found['sampler/lost_tokens_frac'], 12 / 60)
    self.assertEqual(found['sampler/slots_busy_frac'], 60 / 80)

  def test_nothing_yet_is_no_division_by_0(self):
    totals = meter.Meter(lambda: verifiers.Counts(0, 0))
    self.assertEqual(totals.totals().tokens_per_s, 0.0)
    self.assertEqual(totals.totals().slots_busy_frac, 0.0)
    totals.totals().metrics()

  def test_grading_is_timed_and_not_changed(self):
    totals = meter.Meter(lambda: verifiers.Counts(0, 0))
    verdict = reward.Judgement(True, 1.0, 0.0, 0.0, '7')
    asked, prompt = [], tiny_groups.prompt(0)

    def judge(*question):
      asked.append(question)
      return verdict

    timed = totals.timed(judge)
    with mock.patch.object(
      time, 'perf_counter', side_effect=[1.0, 1.5, 7.0, 7.25]
    ):
      self.assertIs(timed(prompt, 'text', 3), verdict)
      timed(prompt, 'text', 4)
    self.assertEqual(asked, [(prompt, 'text', 3), (prompt, 'text', 4)])
    self.assertEqual(totals.totals().metrics()['time/reward_s'], 0.75)

  def test_no_thread_s_time_is_lost(self):
    totals = meter.Meter(lambda: verifiers.Counts(0, 0))
    verdict = reward.Judgement(True, 1.0, 0.0, 0.0, '7')
    timed = totals.timed(lambda *question: verdict)
    other = threading.Thread(target=timed, args=(tiny_groups.prompt(0), '', 3))
    # 0.25 s here, and 0.5 s in the other that begins and ends meanwhile.
    ours, theirs = iter([1.0, 1.25]), iter([5.0, 5.5])

    def clock():
      if threading.current_thread() is other:
        return next(theirs)
      seconds = next(ours)
      if seconds == 1.25:
        other.start()
        other.join()
      return seconds

    with mock.patch.object(time, 'perf_counter', clock):
      timed(tiny_groups.prompt(0), '', 3)
    self.assertEqual(totals.totals().metrics()['time/reward_s'], 0.75)

  def test_waits_add_up(self):
    totals = meter.Meter(lambda: verifiers.Counts(0, 0))
    totals.add_wait(1.5)
    totals.add_wait(0.25)
    found = totals.totals().metrics()
    self.assertEqual(found['time/reward_wait_s'], 1.75)
    self.assertEqual(found['time/reward_s'], 0.0)
    catalogue.check(found)


class OfAllTest(absltest.TestCase):
  _FIRST = meter.Totals(
    tokens=10,
    lost_tokens=1,
    evicted=2,
    steps=20,
    prefills=3,
    slot_steps=80,
    seconds=1.5,
    host_s=0.5,
    judging_s=4.0,
    waited_s=0.25,
    timeouts=5,
    errors=6,
  )
  _SECOND = meter.Totals(
    tokens=100,
    lost_tokens=10,
    evicted=20,
    steps=200,
    prefills=30,
    slot_steps=800,
    seconds=1.25,
    host_s=0.75,
    judging_s=40.0,
    waited_s=0.125,
    timeouts=50,
    errors=60,
  )

  def _of_all(self, owns, *, hosts):
    """Returns the totals that all processes have."""
    found = fake_jobs.run(
      len(owns),
      lambda job: meter.of_all(
        owns[job.index],
        shares_lib.Shares(job, engines=job.count // hosts, hosts=hosts),
      ),
    )
    self.assertEqual(found, [found[0]] * len(owns))
    for one, other in zip(found[0], self._FIRST, strict=True):
      self.assertIs(type(one), type(other))
    return found[0]

  def test_counts_are_sums_and_times_those_of_the_slowest(self):
    self.assertEqual(
      self._of_all([self._FIRST, self._SECOND], hosts=1),
      meter.Totals(
        tokens=110,
        lost_tokens=11,
        evicted=22,
        steps=220,
        prefills=33,
        slot_steps=880,
        seconds=1.5,
        host_s=0.75,
        judging_s=44.0,
        waited_s=0.25,
        timeouts=55,
        errors=66,
      ),
    )

  def test_what_an_engine_did_is_counted_once(self):
    # Two engines of two processes, which count alike what their engine did.
    second = self._FIRST._replace(judging_s=1.0, timeouts=1, errors=0)
    fourth = self._SECOND._replace(judging_s=2.0, timeouts=0, errors=1)
    found = self._of_all([self._FIRST, second, self._SECOND, fourth], hosts=2)
    of_two = self._of_all([self._FIRST, self._SECOND], hosts=1)
    self.assertEqual(
      found, of_two._replace(judging_s=47.0, timeouts=56, errors=67)
    )

  def test_alone_they_are_its_own(self):
    self.assertIs(meter.of_all(self._FIRST, shares_lib.alone()), self._FIRST)


if __name__ == '__main__':
  absltest.main()
