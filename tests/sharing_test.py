"""Tests of `rollout.sharing`, with processes that are threads."""

import itertools
import json

import numpy as np
from absl.testing import absltest, parameterized

import fake_jobs
import tiny_groups
from dapo_jax.data import records
from dapo_jax.rewards import answers
from dapo_jax.rollout import grading, sharing
from dapo_jax.rollout import shares as shares_lib

_SAMPLES = 3
_FINISHES = ('eos', 'stop', 'length')


def _group(ordinal: int) -> records.Group:
  """Returns a group whose numbers no other one has, and no short decimals."""
  rng = np.random.default_rng(100 + ordinal)
  correct = rng.random(_SAMPLES) < 0.5
  group = tiny_groups.group(
    correct,
    ordinal=ordinal,
    lengths=[int(n) for n in rng.integers(1, 9, _SAMPLES)],
    finish=[_FINISHES[i] for i in rng.integers(0, 3, _SAMPLES)],
    extracted=[
      ('', 'seven', answers.NO_ANSWER)[i] for i in rng.integers(0, 3, _SAMPLES)
    ],
  )
  return group._replace(
    correctness=rng.standard_normal(_SAMPLES),
    format=-rng.random(_SAMPLES),
    overlong=-rng.random(_SAMPLES) / 3,
  )


def _draws(first: int, count: int) -> list[records.Draw]:
  return [_group(o).draw for o in range(first, first + count)]


def _encode(prompt: records.Prompt) -> np.ndarray:
  """Returns the prompt tokens of its group."""
  return _group(int(prompt.gold)).prompt_tokens


def _everywhere(draws, shares, collect) -> list[records.Group]:
  return sharing.everywhere(
    draws,
    collect,
    shares=shares,
    samples_per_prompt=_SAMPLES,
    encode=_encode,
    what='round 1',
  )


def _shares(job, hosts=1) -> shares_lib.Shares:
  return shares_lib.Shares(job, engines=job.count // hosts, hosts=hosts)


class EverywhereTest(parameterized.TestCase):
  def _run(self, engines, hosts, draws):
    """Returns of each process what it collected, and the groups it has."""

    def body(job):
      shares, own = _shares(job, hosts), []

      def collect(sampled):
        self.assertEqual(
          sampled, [d for d in draws if shares.is_sampled_here(d.ordinal)]
        )
        own.extend(
          _group(d.ordinal) for d in sampled if shares.is_own(d.ordinal)
        )
        return list(own)

      return own, _everywhere(draws, shares, collect)

    return fake_jobs.run(engines * hosts, body)

  @parameterized.parameters(
    # Engines, their processes, first ordinal, draws.
    (2, 1, 0, 6),
    (3, 1, 5, 7),  # uneven
    (2, 2, 3, 6),
    (1, 3, 1, 5),  # one engine of all
    (4, 1, 6, 2),  # two processes have none
    (4, 1, 9, 1),
    (2, 1, 0, 0),
  )
  def test_all_know_of_all_groups_what_decisions_are_made_of(
    self, engines, hosts, first, count
  ):
    draws = _draws(first, count)
    found = self._run(engines, hosts, draws)
    self.assertEqual(sum(len(own) for own, _ in found), count)
    for own, groups in found:
      self.assertEqual([g.draw for g in groups], draws)
      ours = {g.draw.ordinal: g for g in own}
      for group in groups:
        ordinal = group.draw.ordinal
        if ordinal in ours:
          self.assertIs(group, ours[ordinal])
        else:
          self._assert_told(group, _group(ordinal))

  def _assert_told(self, told, whole):
    """Asserts that a group is what the others are told of the whole one."""
    for field in ('correct', 'correctness', 'format', 'overlong'):
      one, other = getattr(told, field), getattr(whole, field)
      self.assertEqual(one.dtype, other.dtype)
      self.assertEqual(one.tobytes(), other.tobytes(), field)
    np.testing.assert_array_equal(told.prompt_tokens, whole.prompt_tokens)
    np.testing.assert_array_equal(
      records.lengths_tokens(told), records.lengths_tokens(whole)
    )
    self.assertEqual(
      [r.finish for r in told.responses], [r.finish for r in whole.responses]
    )
    self.assertEqual(
      [e == answers.NO_ANSWER for e in told.extracted],
      [e == answers.NO_ANSWER for e in whole.extracted],
    )
    for response in told.responses:
      self.assertEqual(response.text, '')
      self.assertFalse(response.tokens.any() or response.logp_sampler.any())

  def test_verdicts_of_others_may_be_changed(self):
    # As `collect.truncated_as_wrong` or a test of the caller might.
    [_, (_, groups)] = self._run(2, 1, _draws(0, 2))
    groups[0].correctness[:] = 0.0
    self.assertFalse(groups[0].correctness.any())

  def test_alone_all_are_collected_here(self):
    draws, groups = _draws(4, 3), [_group(o) for o in (4, 5, 6)]
    found = _everywhere(draws, shares_lib.alone(), lambda d: groups)
    self.assertIs(found, groups)


class EndTest(parameterized.TestCase):
  """One process or several cannot give their groups."""

  def _errors(self, of_process, draws=6):
    """Returns what each of three raises when some have an error."""
    draws = _draws(0, draws)

    def body(job):
      shares = _shares(job)

      def collect(sampled):
        if job.index in of_process:
          raise of_process[job.index]
        return [_group(d.ordinal) for d in sampled]

      return _everywhere(draws, shares, collect)

    return [ended.error for ended in fake_jobs.endings(3, body)]

  @parameterized.parameters(
    grading.JudgeError, grading.MissingVerdictsError
  )  # fmt: skip
  def test_a_failure_in_one_is_the_end_of_the_round_in_all(self, kind):
    failure = kind('prompt 5: boom')
    first, own, third = self._errors({1: failure})
    self.assertIs(own, failure)
    for error in (first, third):
      self.assertIsInstance(error, sharing.OtherFailedError)
    self.assertEqual(
      str(first),
      f'process 1 failed in round 1: {kind.__name__}: prompt 5: boom',
    )
    self.assertEqual(str(third), 'process 1 failed in round 1: see its message')

  def test_of_the_first_too(self):
    failure = grading.JudgeError('boom')
    own, *others = self._errors({0: failure})
    self.assertIs(own, failure)
    self.assertEqual(
      [str(e) for e in others],
      ['process 0 failed in round 1: see its message'] * 2,
    )

  def test_each_that_fails_raises_its_own(self):
    failures = {1: grading.JudgeError('a'), 2: grading.JudgeError('b')}
    first, *others = self._errors(failures)
    self.assertEqual(others, [failures[1], failures[2]])
    self.assertEqual(str(first), 'process 1 failed in round 1: JudgeError: a')

  def test_one_that_has_no_draws_raises_too(self):
    errors = self._errors({0: grading.JudgeError('boom')}, draws=1)
    self.assertEqual(
      [type(e) for e in errors],
      [grading.JudgeError, *[sharing.OtherFailedError] * 2],
    )

  def test_a_stop_in_one_stops_all(self):
    class Asked(sharing.StoppedError):
      pass

    stop = Asked()
    first, own, third = self._errors({1: stop})
    self.assertIs(own, stop)
    for error in (first, third):
      self.assertIs(type(error), sharing.StoppedError)

  def test_a_failure_is_graver_than_a_stop(self):
    failure = grading.JudgeError('boom')
    errors = self._errors({0: sharing.StoppedError(), 2: failure})
    self.assertEqual(
      [type(e) for e in errors],
      [sharing.OtherFailedError, sharing.OtherFailedError, type(failure)],
    )
    self.assertStartsWith(str(errors[0]), 'process 2 failed in round 1: Judge')

  def test_the_errors_that_end_a_run_are_named(self):
    for error in self._errors({1: grading.JudgeError('boom')}):
      self.assertIsInstance(error, sharing.ERRORS)
    for error in self._errors({1: sharing.StoppedError()}):
      self.assertNotIsInstance(error, sharing.ERRORS)


class WholeRowsTest(parameterized.TestCase):
  @parameterized.product(
    processes=((2, 1), (3, 1), (2, 2)), count=(0, 1, 7), first=(0, 5)
  )
  def test_the_first_has_each_row_as_its_owner(self, processes, count, first):
    engines, hosts = processes
    whole = [
      {'ordinal': o, 'text': f'response\ud800 to {o}', 'reward': o / 3}
      for o, _ in itertools.product(range(first, first + count), range(2))
    ]

    def body(job):
      shares = _shares(job, hosts)
      rows = [
        row if shares.is_own(row['ordinal']) else {**row, 'text': ''}
        for row in whole
      ]
      return sharing.whole_rows(rows, shares)

    found, *others = fake_jobs.run(engines * hosts, body)
    self.assertEqual(json.dumps(found), json.dumps(whole))
    self.assertEqual(others, [[]] * (engines * hosts - 1))

  def test_alone_they_are_whole(self):
    rows = [{'ordinal': 3, 'text': 'a'}]
    self.assertEqual(sharing.whole_rows(rows, shares_lib.alone()), rows)


if __name__ == '__main__':
  absltest.main()
