"""Tests of `training.sameness`, with processes that are threads."""

import threading
from unittest import mock

from absl.testing import absltest, parameterized

import fake_jobs
import tiny_groups
import tiny_run
from dapo_jax.rollout import shares as shares_lib
from dapo_jax.training import assemble, sameness
from dapo_jax.training import origin as origin_lib

_ORIGIN = origin_lib.Origin('train', 'tokenizer a', 'prompts a', 9, None)


def _check(job, *, changes=(), origin=None, evaluated=(1, 2)):
  """Checks a process whose settings differ by `changes`."""
  parts = assemble.Parts(**dict.fromkeys(assemble.Parts._fields))
  sameness.check(
    tiny_run.config(dict(changes)),
    parts._replace(
      eval_prompts=[tiny_groups.prompt(n) for n in evaluated],
      shares=shares_lib.Shares(job, engines=job.count, hosts=1),
    ),
    origin or _ORIGIN,
  )


class CheckTest(parameterized.TestCase):
  def _errors(self, of_last):
    """Returns what three processes raise of which the last differs."""
    return [
      ended.error
      for ended in fake_jobs.endings(
        3, lambda job: _check(job, **(of_last if job.index == 2 else {}))
      )
    ]

  def test_the_same_may_begin(self):
    self.assertEqual(self._errors({}), [None] * 3)

  def test_one_is_the_same_as_itself(self):
    fake_jobs.run(1, _check)

  @parameterized.parameters(
    ({'changes': {'optim.lr': 0.5}}, 'the configuration (--config)'),
    (
      {'origin': _ORIGIN._replace(prompts='prompts b')},
      'the training problems (--config.data)',
    ),
    (
      {'origin': _ORIGIN._replace(tokenizer='tokenizer b')},
      'the tokenizer (--config.tokenizer.path)',
    ),
    ({'evaluated': (1, 3)}, 'the problems of the evaluation (--config.eval)'),
    ({'evaluated': (2, 1)}, 'the problems of the evaluation (--config.eval)'),
    (
      {'changes': {'seed': 7}, 'evaluated': ()},
      'the configuration (--config) and the problems of the evaluation '
      '(--config.eval)',
    ),
  )
  def test_one_that_differs_is_named_in_all_of_them(self, of_last, names):
    errors = self._errors(of_last)
    self.assertEqual({type(e) for e in errors}, {ValueError})
    self.assertEqual(
      {str(e) for e in errors},
      {
        f'process 2 differs from process 0 in {names}; give the same command '
        'and the same files to all processes'
      },
    )

  def test_versions_are_compared(self):
    with mock.patch.object(sameness, 'dapo_jax', _EachItsOwn()):
      errors = self._errors({})
    self.assertIn(
      'process 1 differs from process 0 in the versions of dapo-jax, jax or '
      'Python; ',
      str(errors[0]),
    )


class _EachItsOwn:
  """A package of which each thread that asks has another version."""

  @property
  def __version__(self) -> str:
    return threading.current_thread().name


if __name__ == '__main__':
  absltest.main()
