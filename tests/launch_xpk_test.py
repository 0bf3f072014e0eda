"""Tests of launch/xpk.sh: what it gives to xpk, and what it makes of it."""

import os
import signal

from absl.testing import absltest, parameterized

import launching

_ARGS = (
  '--name=one',
  '--cluster=mine',
  '--type=v6e-8',
  '--image=example/dapo:1',
  '--folder=gs://bucket/runs/1',
  '--poll=0.05',
)
_JOB = ('--', 'train', '--config=good.py', '--config.train.steps=8')


class RunTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.place = launching.Place(self)

  def _run(self, *args: str, job=_JOB, status: int = 0) -> str:
    done = self.place.run('xpk.sh', *_ARGS, *args, *job)
    self.assertEqual(done.status, status, done.output)
    return done.output

  def test_a_preempted_run_resumes_and_its_log_is_followed(self):
    self.place.set_state(
      faults=[{'what': 'preempt', 'step': 3}, {'what': 'terminate', 'step': 6}]
    )
    output = self._run('--slices=2', '--capacity=spot', '--zone=there')
    self.assertRegex(output, '(?m)^resumed after step 2$')
    self.assertEqual(self.place.steps('bucket/runs/1')[-1], 8)
    [create] = self.place.calls('xpk', 'create')
    self.assertContainsSubset(
      {
        '--cluster=mine',
        '--workload=one',
        '--tpu-type=v6e-8',
        '--num-slices=2',
        '--docker-image=example/dapo:1',
        '--max-restarts=50',
        '--restart-on-exit-codes=1,75',
        '--spot',
        '--zone=there',
        '--command=bash launch/job.sh /tmp/dapo-jax gs://bucket/runs/1 train '
        '--config=good.py --config.train.steps=8 --distributed',
      },
      create,
    )
    # The same command again.
    self.assertRegex(self._run(), '(?m)^resumed after step 8$')
    self.assertLen(self.place.calls('xpk', 'delete', '--workload=one'), 1)

  def test_ctrl_c_leaves_it_and_says_how_to_delete_it_where_it_is(self):
    self.place.set_state(holds=[5])
    where = ('--project=ours', '--zone=there')
    first = self.place.begin('xpk.sh', *_ARGS, *where, *_JOB)
    seen = ''
    while 'step 2\n' not in seen:
      seen += first.stdout.readline()
    os.killpg(first.pid, signal.SIGINT)
    self.assertEqual(first.wait(timeout=20), 130)
    self.place.set_state(holds=[])  # the pod goes on, and holds the output
    output, _ = first.communicate(timeout=20)
    self.assertRegex(output, 'not followed any more; the run goes on')
    self.assertRegex(
      output,
      'launch/xpk.sh --name=one --cluster=mine --project=ours --zone=there '
      '--delete',
    )

  def test_an_error_of_the_user_ends_it(self):
    output = self._run(job=('--', 'train', '--config=bad.py'), status=2)
    self.assertRegex(output, 'there is no key optim.learning')
    self.assertLen(self.place.calls('logs'), 1)

  def test_a_dry_run_prints_what_is_run_and_runs_nothing(self):
    job = (*_JOB, "--config.data.source=it's here")
    dry = self._run('--dry-run', job=job)
    self.assertEmpty(self.place.calls())
    printed = launching.commands(dry, 'xpk', 'kubectl')
    self._run(job=job)
    # The name of the pod is Kubernetes's to choose.
    ran = [
      [word.replace('slice-0-0-0', 'slice-0-0') for word in call]
      for call in self.place.calls()
    ]
    self.assertEqual(printed, ran)

  @parameterized.parameters(
    (('--cluster=',), '--cluster=NAME is required'),
    (('--image=',), '--image=IMAGE is required'),
    (('--type=x',), r'--type \(x\) must be a generation and a size'),
    (('--capacity=cheap',), r'--capacity \(cheap\) must be on-demand, spot'),
    (('--slices=many',), r'--slices \(many\) must be a number'),
    (('--delete',), '--delete takes nothing after --'),
  )
  def test_a_wrong_option_is_one_error_before_anything(self, args, error):
    output = self._run(*args, status=2)
    self.assertRegex(output, f'^xpk.sh: error: {error}')
    self.assertLen(output.splitlines(), 1)
    self.assertEmpty(self.place.calls())


if __name__ == '__main__':
  absltest.main()
