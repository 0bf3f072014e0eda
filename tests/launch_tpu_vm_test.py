"""Tests of launch/tpu_vm.sh, with workers that are folders of this machine."""

import os
import re
import signal

import pytest
from absl.testing import absltest, parameterized

import launching

_FOLDER = '--folder=gs://bucket/runs/1'
_ARGS = ('--name=one', '--type=v5litepod-8', _FOLDER, '--poll=0.05')
_JOB = ('--', 'train', '--config=good.py', '--config.train.steps=8')
_ALL = list(range(1, 9))


def _lines(output: str, pattern: str) -> list[str]:
  return re.findall(f'^{pattern}$', output, re.MULTILINE)


class RunTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.place = launching.Place(self, hosts=2)

  def _run(self, *args: str, job=_JOB, status: int = 0) -> str:
    done = self.place.run('tpu_vm.sh', *_ARGS, *args, *job)
    self.assertEqual(done.status, status, done.output)
    return done.output

  def test_a_preempted_run_is_restarted_on_new_machines_and_resumes(self):
    self.place.set_state(
      faults=[{'when': ' follow ', 'step': 5, 'what': 'preempt'}]
    )
    output = self._run('--capacity=spot', '--delete-when-done')
    self.assertLen(self.place.calls('create', '--spot'), 2)
    # One that was preempted, and one when all is done.
    self.assertLen(self.place.calls('delete'), 2)
    self.assertLen(_lines(output, 'begun'), 0)  # nobody saw it: it was killed
    self.assertRegex(output, 'preempted or lost: one is SUSPENDED')
    # Checkpoints are every second step.
    self.assertRegex(output, '(?m)^resumed after step 4$')
    self.assertEqual(self.place.steps('bucket/runs/1')[-1], 8)
    self.assertTrue(
      (self.place.buckets / 'bucket/runs/1/workdir/model/config.json').exists()
    )

  def test_a_broken_connection_loses_no_line_and_starts_nothing(self):
    self.place.set_state(
      faults=[{'when': ' follow ', 'step': 3, 'what': 'break'}]
    )
    output = self._run()
    self.assertRegex(output, 'the connection broke; the run goes on')
    shown = [int(n) for n in _lines(output, 'step (.*)')]
    self.assertEqual(shown, _ALL)
    self.assertLen(self.place.calls('create'), 1)
    self.assertLen(self.place.calls('scp'), 1)

  @pytest.mark.slow
  def test_a_signal_to_a_machine_restarts_the_run_where_it_is(self):
    self.place.set_state(
      faults=[{'when': ' follow ', 'step': 3, 'what': 'terminate'}]
    )
    output = self._run()
    self.assertRegex(output, r'stopped by a signal at step 3')
    self.assertLen(self.place.calls('create'), 1)
    self.assertEqual(self.place.steps('bucket/runs/1'), _ALL)
    # What is installed stays: pip was called once by each of two hosts.
    pip = (self.place.cloud / 'pip.txt').read_text().splitlines()
    self.assertLen(pip, 2)
    self.assertRegex(
      pip[0], r'--constraint constraints-py3\d\d.txt .\[tpu,gcs]'
    )

  def test_an_error_of_the_user_is_not_tried_again(self):
    output = self._run(job=('--', 'train', '--config=bad.py'), status=2)
    self.assertRegex(output, 'there is no key optim.learning')
    self.assertLen(_lines(output, '.* starting: .*'), 1)
    self.assertRegex(output, 'delete it: .*--name=one .*--delete')

  @pytest.mark.slow
  def test_a_fault_that_comes_again_ends_it(self):
    output = self._run(
      '--max-failures=2', job=('--', 'train', '--config=crash.py'), status=2
    )
    self.assertRegex(output, 'given up at step 3 after 2 failures in a row')
    self.assertLen(_lines(output, '.* starting: .*'), 2)

  def test_what_another_deletes_is_not_rented_again(self):
    self.place.set_state(holds=[3])
    first = self.place.begin('tpu_vm.sh', *_ARGS, *_JOB)
    seen = ''
    while 'step 2\n' not in seen:
      seen += first.stdout.readline()
    deleted = self.place.run('tpu_vm.sh', '--name=one', '--delete')
    self.assertEqual(deleted.status, 0, deleted.output)
    output, _ = first.communicate(timeout=20)
    self.assertEqual(first.returncode, 2, output)
    self.assertRegex(output, 'one was deleted, not by this script')
    self.assertNotRegex(output, 'costs')
    self.assertLen(self.place.calls('create'), 1)
    # What is not there is deleted.
    again = self.place.run('tpu_vm.sh', '--name=one', '--delete')
    self.assertEqual(again.status, 0, again.output)

  def test_what_is_deleted_while_it_waits_is_not_requested_again(self):
    waits = {'when': ' describe ', 'what': 'wait'}
    self.place.set_state(faults=[waits] * 400)
    first = self.place.begin('tpu_vm.sh', *_ARGS, *_JOB)
    while 'WAITING' not in (line := first.stdout.readline()):
      self.assertNotEmpty(line)
    self.place.set_state(faults=[])
    self.place.run('tpu_vm.sh', '--name=one', '--delete')
    output, _ = first.communicate(timeout=20)
    self.assertEqual(first.returncode, 2, output)
    self.assertRegex(output, 'one was deleted, not by this script')
    self.assertLen(self.place.calls('create'), 1)

  def test_ctrl_c_before_anything_is_there_says_so(self):
    slow = 'PERMISSION was not looked up: name resolution'
    refusal = {'when': ' describe ', 'what': 'refuse', 'message': slow}
    self.place.set_state(faults=[refusal] * 100)
    first = self.place.begin('tpu_vm.sh', *_ARGS, *_JOB)
    while 'does not tell' not in (line := first.stdout.readline()):
      self.assertNotEmpty(line)
    os.killpg(first.pid, signal.SIGINT)
    output, _ = first.communicate(timeout=20)
    self.assertEqual(first.returncode, 130, output)
    self.assertNotRegex(output, 'goes on')
    self.assertRegex(output, 'one may be there, and cost')

  def test_a_deletion_that_fails_is_tried_again(self):
    refusal = {'when': ' delete ', 'what': 'refuse', 'message': 'try later'}
    self.place.set_state(faults=[refusal])
    self._run('--delete-when-done')
    self.assertLen(self.place.calls('delete', '--force'), 2)

  def test_what_could_not_be_deleted_is_told_with_how_to(self):
    refusal = {'when': ' delete ', 'what': 'refuse', 'message': 'try later'}
    self.place.set_state(faults=[refusal] * 3)
    output = self._run('--delete-when-done', status=2)
    self.assertRegex(output, 'error: one may still be there, and cost')
    self.assertRegex(output, 'delete it: .*--name=one .*--delete')

  def test_what_asking_again_does_not_help_is_asked_once(self):
    refusal = {
      'when': ' describe ',
      'what': 'refuse',
      'message': "PERMISSION_DENIED: Permission 'tpu.nodes.get' denied",
    }
    self.place.set_state(faults=[refusal])
    output = self._run(status=2)
    self.assertRegex(output, 'PERMISSION_DENIED(.|\n)*gcloud tells no state')
    self.assertLen(self.place.calls('describe'), 1)
    # It may be there from before.
    self.assertRegex(output, 'one may be there, and cost:')

  def test_what_cannot_be_had_ends_it(self):
    refusal = {'when': ' create ', 'what': 'refuse', 'message': 'no quota'}
    self.place.set_state(faults=[refusal] * 3)
    output = self._run(status=2)
    self.assertRegex(output, 'no quota(.|\n)*one was refused 3 times in a row')
    self.assertLen(self.place.calls('create'), 3)

  @pytest.mark.slow
  def test_what_cannot_be_installed_is_told(self):
    self.place.program('pip', '#!/bin/sh\necho no network >&2\nexit 1\n')
    output = self._run('--max-failures=1', status=2)
    self.assertRegex(output, 'no network')
    self.assertRegex(output, 'it could not be installed or started, see above')
    self.assertRegex(output, 'given up at step 0 after 1 failures')

  def test_ctrl_c_leaves_it_and_the_same_command_follows(self):
    self.place.set_state(holds=[5])
    first = self.place.begin('tpu_vm.sh', *_ARGS, *_JOB)
    seen = ''
    while 'step 2\n' not in seen:
      seen += first.stdout.readline()
    os.killpg(first.pid, signal.SIGINT)
    output, _ = first.communicate(timeout=20)
    self.assertEqual(first.returncode, 130, output)
    self.assertRegex(output, 'not followed any more; what was started goes on')
    second = self.place.begin('tpu_vm.sh', *_ARGS, *_JOB)
    again = ''
    while 'it runs already, at step 5' not in again:
      again += second.stdout.readline()
    self.place.set_state(holds=[])
    again += second.communicate(timeout=30)[0]
    self.assertEqual(second.returncode, 0, again)
    self.assertEmpty(_lines(again, '.* starting: .*'))
    self.assertLen(_lines(again, 'step 8'), 1)
    self.assertEqual(self.place.steps('bucket/runs/1'), _ALL)
    self.assertLen(self.place.calls('create'), 1)

  @pytest.mark.slow
  def test_it_stops_on_request_and_goes_on(self):
    self.place.set_state(holds=[3])
    first = self.place.begin('tpu_vm.sh', *_ARGS, *_JOB)
    seen = ''
    while 'step 2\n' not in seen:
      seen += first.stdout.readline()
    status = self.place.run('tpu_vm.sh', '--name=one', '--status').output
    self.assertRegex(status, r'(?m)^first running - \d \d+$')
    self.assertRegex(status, r'(?m)^other running - 0 \d+$')
    follower = self.place.begin('tpu_vm.sh', '--name=one', '--follow')
    self.assertRegex(follower.stdout.readline(), 'project some-project')
    self.assertRegex(follower.stdout.readline(), 'dapo-jax train|step|begun')
    self.place.run('tpu_vm.sh', '--name=one', '--stop')
    self.assertRegex(follower.communicate(timeout=20)[0], 'stopped after')
    output, _ = first.communicate(timeout=20)
    self.assertEqual(first.returncode, 75, output)
    self.assertRegex(output, 'stopped on request')
    self.place.set_state(holds=[])
    self.assertRegex(self._run(), r'resumed after step 3')
    self.place.run('tpu_vm.sh', '--name=one', '--delete')
    self.assertLen(self.place.calls('delete', '--force'), 1)
    self.assertEqual(self.place.steps('bucket/runs/1'), _ALL)

  def test_several_slices_are_one_run_with_one_input(self):
    given = self.place.buckets / 'bucket/runs/1/input/problems/a.jsonl'
    given.parent.mkdir(parents=True)
    given.write_text('{}')
    output = self._run('--slices=2')
    [create] = self.place.calls('create')
    self.assertContainsSubset({'--node-count=2', '--node-prefix=one'}, create)
    for node in ('one-0', 'one-1'):
      homes = sorted((self.place.cloud / 'machines' / node).iterdir())
      self.assertLen(homes, 2)
      for home in homes:
        run = home / 'dapo_jax_runs/one'
        said = (run / 'log.txt').read_text()
        self.assertRegex(said, 'dapo-jax train .* --distributed --workdir=')
        brought = run / 'source/input/problems/a.jsonl'
        self.assertEqual(brought.read_text(), '{}')
        is_first = home == homes[0] and node == 'one-0'
        self.assertEqual((run / 'first').read_text() == 'true\n', is_first)
    self.assertEqual(self.place.steps('bucket/runs/1'), _ALL, output)

  @pytest.mark.slow
  def test_a_running_tpu_vm_is_used_as_it_is(self):
    self.place.set_state(nodes={'one': 'READY'})
    (self.place.cloud / 'machines/one/w0').mkdir(parents=True)
    args = ('--existing', '--name=one', _FOLDER, '--poll=0.05', *_JOB)
    done = self.place.run('tpu_vm.sh', *args)
    self.assertEqual(done.status, 0, done.output)
    self.assertEmpty(self.place.calls('queued-resources'))
    self.place.set_state(nodes={'one': 'STOPPED'})
    done = self.place.run('tpu_vm.sh', *args)
    self.assertEqual(done.status, 2)
    self.assertRegex(done.output, 'must be a TPU VM that is READY, and it is')

  def test_a_dry_run_prints_what_is_run_and_runs_nothing(self):
    where = ('--project=some-project', '--zone=some-zone')
    dry = self.place.run('tpu_vm.sh', *_ARGS, *where, '--dry-run', *_JOB)
    self.assertEqual(dry.status, 0, dry.output)
    self.assertEmpty(self.place.calls())
    printed = launching.commands(dry.output, 'gcloud')
    self._run(*where)

    def once(calls):
      # The archive and the start have names of their own each time.
      known = [re.sub(r'\S*/tmp\.\w+/', '', '\n'.join(c)) for c in calls]
      known = [re.sub(r'\b\d{10}-\d+ ', 'START ', call) for call in known]
      return list(dict.fromkeys(known))

    self.assertEqual(once(printed), once(self.place.calls()))
    self.assertGreater(len(printed), 8)


class OptionTest(parameterized.TestCase):
  @parameterized.parameters(
    (('--name=One',), r'--name \(One\) must be a lower-case letter'),
    (('--name=',), '--name=NAME is required'),
    (('--type=v5e8',), r'--type \(v5e8\) must be a generation and a size'),
    (('--type=v5p-6',), r'--type \(v5p-6\) must have a size that 8 divides'),
    (('--type=v6e-3',), r'--type \(v6e-3\) must have 1, 4, 8, 16, 32, 64, 128'),
    (('--type=',), '--type=TYPE is required'),
    (('--slices=0',), r'--slices \(0\) must be a number from 1'),
    (('--folder=/tmp/x',), r'--folder \(/tmp/x\) must be gs://BUCKET/FOLDER'),
    (('--folder=gs://Mine/x',), '.* BUCKET in lower case'),
    (('--folder=',), '--folder=gs://BUCKET/FOLDER is required'),
    (('--capacity=cheap',), r'--capacity \(cheap\) must be on-demand, spot or'),
    (('--poll=soon',), r'--poll \(soon\) must be a number of seconds'),
    (('--max-failures=x',), r'--max-failures \(x\) must be a number from 1'),
    (('--ref=nothing',), r'--ref \(nothing\) must be a commit'),
    (('--extras=a b',), r'--extras \(a b\) must be names with commas'),
    (('--existing',), '--existing is one TPU VM as it is'),
    (('--spot',), 'there is no option --spot'),
    (('--stop',), '--stop takes nothing after --'),
  )
  def test_a_wrong_one_is_one_error_before_anything(self, args, error):
    place = launching.Place(self)
    done = place.run('tpu_vm.sh', *_ARGS, *args, *_JOB)
    self.assertEqual(done.status, 2, done.output)
    self.assertRegex(done.output, f'^tpu_vm.sh: error: {error}')
    self.assertLen(done.output.splitlines(), 1)
    self.assertEmpty(place.calls())

  @parameterized.parameters(
    ((), 'nothing to run'),
    (('--', 'train'), r'after -- there must be a --config=FILE'),
    (('--', 'train', '--config.train.steps=8'), 'after -- there must be a'),
    (
      ('--', 'train', '--config=new.py:row'),
      r'--config \(new.py\) must be a file of the commit that is installed',
    ),
    (
      ('--', 'train', '--config', 'new.py'),
      r'--config \(new.py\) must be a file of the commit that is installed',
    ),
    (('--', 'serve'), r'after -- \(now serve\) must be train, sft or eval'),
    (('--', 'train', '--workdir=x'), '--workdir=x must not be given after --'),
    (('--', 'train', '-workdir=x'), '--workdir=x must not be given after --'),
    (('--', 'train', '--distributed'), '--distributed must not be given'),
    (
      ('--', 'train', '--config.checkpoint.folder=gs://a/b'),
      '--config.checkpoint.folder=gs://a/b must not be given after --',
    ),
  )
  def test_a_job_that_is_not_ours_to_run(self, job, error):
    place = launching.Place(self)
    done = place.run('tpu_vm.sh', *_ARGS, *job)
    self.assertEqual((done.status, place.calls()), (2, []), done.output)
    self.assertRegex(done.output, f'^tpu_vm.sh: error: {error}')


if __name__ == '__main__':
  absltest.main()
