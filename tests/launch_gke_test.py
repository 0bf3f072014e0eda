"""Tests of launch/gke.sh: what it gives to Kubernetes, and what comes of it."""

import json
import re
import subprocess

import yaml
from absl.testing import absltest, parameterized

import launching
from dapo_jax.planning import topology as topology_lib

_ARGS = (
  '--name=one',
  '--image=example/dapo:1',
  '--folder=gs://bucket/runs/1',
  '--poll=0.05',
)
_JOB = ('--', 'train', '--config=good.py', '--config.train.steps=8')


class RenderTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.place = launching.Place(cls)

  @classmethod
  def addCleanup(cls, function):
    cls.addClassCleanup(function)

  def _jobset(self, *args: str, job=_JOB) -> dict:
    done = self.place.run('gke.sh', *_ARGS, *args, '--print', *job)
    self.assertEqual(done.status, 0, done.output)
    # No mark is left.
    self.assertNotRegex(done.output.replace('{@}', ''), '@[A-Z]')
    return yaml.safe_load(done.output)

  def test_one_host(self):
    jobset = self._jobset('--type=v5litepod-8')
    self.assertEqual(jobset['apiVersion'], 'jobset.x-k8s.io/v1alpha2')
    self.assertEqual(jobset['metadata']['name'], 'one')
    # Only a slice of several hosts is a node pool.
    self.assertEqual(
      jobset['metadata']['annotations'], {'dapo-jax/slices': '1'}
    )
    [slices] = jobset['spec']['replicatedJobs']
    job = slices['template']['spec']
    self.assertEqual(
      (slices['replicas'], job['parallelism'], job['completions']), (1, 1, 1)
    )
    pod = job['template']['spec']
    [container] = pod['containers']
    self.assertEqual(container['resources']['limits'], {'google.com/tpu': 8})
    self.assertEqual(
      pod['nodeSelector'],
      {
        'cloud.google.com/gke-tpu-accelerator': 'tpu-v5-lite-podslice',
        'cloud.google.com/gke-tpu-topology': '2x4',
      },
    )
    self.assertEqual(
      container['args'],
      [
        '/run/dapo-jax',
        'gs://bucket/runs/1',
        *_JOB[1:],
        '--distributed',
      ],
    )

  def test_several_slices(self):
    jobset = self._jobset('--type=v5p-256', '--slices=2', '--capacity=spot')
    spec = jobset['spec']
    [slices] = spec['replicatedJobs']
    job = slices['template']['spec']
    # 256 TensorCores are 128 chips; 32 hosts of four.
    self.assertEqual(
      (slices['replicas'], job['parallelism'], job['completions']), (2, 32, 32)
    )
    self.assertIn(
      'alpha.jobset.sigs.k8s.io/exclusive-topology',
      jobset['metadata']['annotations'],
    )
    pod = job['template']['spec']
    self.assertEqual(
      pod['nodeSelector'],
      {
        'cloud.google.com/gke-tpu-accelerator': 'tpu-v5p-slice',
        'cloud.google.com/gke-tpu-topology': '4x4x8',
        'cloud.google.com/gke-spot': 'true',
      },
    )
    self.assertLen(pod['tolerations'], 2)
    self.assertEqual((job['backoffLimit'], pod['restartPolicy']), (0, 'Never'))

  def test_an_error_of_the_user_ends_it_and_other_faults_do_not(self):
    spec = self._jobset('--type=v6e-8', '--max-restarts=7')['spec']
    self.assertEqual(spec['failurePolicy']['maxRestarts'], 7)
    [rule] = spec['failurePolicy']['rules']
    self.assertEqual(rule['action'], 'FailJobSet')
    self.assertEqual(rule['onJobFailureReasons'], ['PodFailurePolicy'])
    job = spec['replicatedJobs'][0]['template']['spec']
    [rule] = job['podFailurePolicy']['rules']
    self.assertEqual(rule['action'], 'FailJob')
    self.assertEqual(
      rule['onExitCodes'],
      {'containerName': 'dapo-jax', 'operator': 'In', 'values': [2]},
    )

  def test_reserved_and_other_hosts(self):
    jobset = self._jobset(
      '--type=v5e-8',
      '--capacity=reserved:mine',
      '--chips-per-host=4',
      '--user=0',
      '--service-account=trainer',
    )
    job = jobset['spec']['replicatedJobs'][0]['template']['spec']
    pod = job['template']['spec']
    selector = pod['nodeSelector']
    self.assertEqual(selector['cloud.google.com/reservation-name'], 'mine')
    self.assertNotIn('cloud.google.com/gke-spot', selector)
    self.assertEqual(job['parallelism'], 2)
    self.assertEqual(pod['securityContext'], {'runAsUser': 0})
    self.assertEqual(pod['serviceAccountName'], 'trainer')

  @parameterized.parameters(
    'a b', '"', '\\', '&', '$(NAME)', '{@}', "it's", '*', '#', ': x', '\\1&\\n'
  )
  def test_a_word_of_the_user_comes_through(self, word):
    job = ('--', 'train', f'--config.data.source={word}', '--config=good.py')
    jobset = self._jobset('--type=v6e-1', job=job)
    pod = jobset['spec']['replicatedJobs'][0]['template']['spec']['template']
    [container] = pod['spec']['containers']
    # Kubernetes reads $$ as $, and would put a variable in place of $(NAME).
    found = container['args'][3].replace('$$', '$')
    self.assertEqual(found, f'--config.data.source={word}')

  @parameterized.parameters(
    (('--type=v5p-24',), 'there is no usual topology of 12 chips'),
    (('--type=v5p-14',), r'--type \(v5p-14\) must have a size that 8 divides'),
    (('--type=v5p-8', '--topology=2x2x2'), r'--topology \(2x2x2\) must have'),
    (('--type=v6e-8', '--topology=2x'), r'--topology \(2x\) must be AxB'),
    (('--type=v6e-8', '--chips-per-host=3'), r'--chips-per-host \(3\) must be'),
    (('--type=v6e-8', '--image='), '--image=IMAGE is required'),
    (('--type=v6e-8', '--image=a b'), r'--image \(a b\) must be the name of'),
    (('--type=v6e-8', '--capacity=reserved'), r'--capacity \(reserved\) must'),
    (('--type=v6e-8', '--user=me'), r'--user \(me\) must be a number'),
    (('--type=v6e-8', '--max-restarts=-1'), r'--max-restarts \(-1\) must be'),
    ((), '--type=TYPE is required'),
  )
  def test_a_wrong_option_is_one_error_before_anything(self, args, error):
    done = self.place.run('gke.sh', *_ARGS, *args, *_JOB)
    self.assertEqual(done.status, 2, done.output)
    self.assertRegex(done.output, f'^gke.sh: error: {error}')
    self.assertLen(done.output.splitlines(), 1)
    self.assertEmpty(self.place.calls())


class TableTest(absltest.TestCase):
  def _table(self) -> list[list[str]]:
    """Returns what accelerators.sh says of every type that it knows."""
    source = (launching.ROOT / 'launch/accelerators.sh').read_text()
    square, cube = source.split('_cube() {')[0], source.split('_cube() {')[1]
    sizes = {
      'v5litepod': [int(n) for n in re.findall(r'^ {4}(\d+)\)', square, re.M)],
      'v5p': [2 * int(n) for n in re.findall(r'^ {4}(\d+)\)', cube, re.M)],
    }
    types = [
      f'{generation}-{size}'
      for generation, like in (
        ('v5litepod', 'v5litepod'),
        ('v6e', 'v5litepod'),
        ('v5p', 'v5p'),
        ('v4', 'v5p'),
      )
      for size in sizes[like]
      if not (generation == 'v4' and size > 8192)
    ]
    script = f"""
      cd {launching.ROOT}/launch; source shared.sh; source accelerators.sh
      for t in {' '.join(types)}; do
        accelerator $t
        echo $t $chips $topology $hosts $chips_per_host $gke_label $runtime
      done"""
    done = subprocess.run(
      ['bash', '-c', script], capture_output=True, text=True, check=True
    )
    return [line.split() for line in done.stdout.splitlines()]

  def test_hosts_and_topologies_have_all_the_chips(self):
    rows = self._table()
    self.assertLen(rows, 2 * 8 + 21 + 19)
    for name, chips, topology, hosts, each, *_ in rows:
      sides = [int(side) for side in topology.split('x')]
      product = 1
      for side in sides:
        product *= side
      self.assertEqual(product, int(chips), name)
      # As a plan knows it.
      self.assertEqual(topology_lib.parse(name).grid, tuple(sides), name)
      self.assertEqual(int(hosts) * int(each), int(chips), name)
      is_cube = name.startswith(('v4', 'v5p'))
      self.assertLen(sides, 3 if is_cube else 2, name)
      cores = 2 if is_cube else 1
      self.assertEqual(int(name.split('-')[1]), cores * int(chips), name)

  def test_some_rows(self):
    rows = {row[0]: row[1:] for row in self._table()}
    self.assertEqual(
      rows['v5litepod-8'],
      ['8', '2x4', '1', '8', 'tpu-v5-lite-podslice', 'v2-alpha-tpuv5-lite'],
    )
    self.assertEqual(
      rows['v6e-64'],
      ['64', '8x8', '16', '4', 'tpu-v6e-slice', 'v2-alpha-tpuv6e'],
    )
    self.assertEqual(
      rows['v5p-32'],
      ['16', '2x2x4', '4', '4', 'tpu-v5p-slice', 'v2-alpha-tpuv5'],
    )
    self.assertEqual(
      rows['v4-8'],
      ['4', '2x2x1', '1', '4', 'tpu-v4-podslice', 'tpu-ubuntu2204-base'],
    )


class RunTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.place = launching.Place(self)

  def _run(self, *args: str, job=_JOB, status: int = 0) -> str:
    done = self.place.run('gke.sh', *_ARGS, '--type=v6e-8', *args, *job)
    self.assertEqual(done.status, status, done.output)
    return done.output

  def test_a_preempted_run_resumes_and_its_log_is_followed(self):
    faults = [
      {'what': 'preempt', 'step': 3},
      {'what': 'terminate', 'step': 6},
    ]
    self.place.set_state(faults=faults)
    output = self._run()
    self.assertRegex(output, '(?m)^resumed after step 2$')
    # A signal ends dapo-jax with 0, and yet it is not done.
    self.assertRegex(output, '(?m)^stopped after 6 of 8 steps$')
    self.assertEqual(self.place.steps('bucket/runs/1')[-1], 8)
    self.assertLen(re.findall('the log of one-slice-0-0-', output), 3)
    self.assertLen(self.place.calls('apply'), 1)
    # The same command again: it resumes, and finds that all is done.
    again = self._run()
    self.assertRegex(
      again, 'one is there and has ended .Completed.; it is made'
    )
    self.assertRegex(again, '(?m)^resumed after step 8$')

  def test_pods_that_wait_are_told_of_with_where_to_see_why(self):
    self.place.set_state(pending=3)
    output = self._run()
    self.assertLen(re.findall('no pod of one runs yet; why: ', output), 1)
    self.assertRegex(output, 'why: kubectl describe pods .*jobset-name=one')
    self.assertNotRegex(output, 'error')
    self.assertEqual(self.place.steps('bucket/runs/1')[-1], 8)

  def test_a_kubectl_that_tells_nothing_any_more_ends_it(self):
    fake = (self.place.bin / 'kubectl').read_text().partition('\n')[2]
    self.place.program(
      'kubectl',
      '#!/bin/bash\n'
      'if [[ $1 == get && -e $FAKE_CLOUD/jobset.json ]]; then\n'
      '  echo "error: You must be logged in" >&2; exit 1\n'
      f'fi\n{fake}',
    )
    output = self._run(status=2)
    self.assertRegex(output, 'logged in(.|\n)*kubectl told no state')
    self.assertNotRegex(output, 'no pod of one runs')

  def test_an_error_of_the_user_ends_it(self):
    output = self._run(job=('--', 'train', '--config=bad.py'), status=2)
    self.assertRegex(output, 'there is no key optim.learning')
    self.assertRegex(output, 'gke.sh: error: the run failed')
    self.assertLen(self.place.calls('logs'), 1)

  def test_faults_are_restarted_as_often_as_was_said(self):
    job = ('--', 'train', '--config=crash.py')
    self._run('--max-restarts=1', job=job, status=2)
    self.assertLen(self.place.calls('logs'), 2)

  def test_what_runs_is_followed_and_not_made_again(self):
    self._run(
      '--context=mine', job=('--', 'train', '--config=bad.py'), status=2
    )
    file = self.place.cloud / 'jobset.json'
    about = json.loads(file.read_text())
    file.write_text(json.dumps(about | {'condition': ''}))
    output = self._run('--context=mine', status=2)
    self.assertRegex(output, 'one runs already')
    self.assertLen(self.place.calls('apply', '--context=mine'), 1)

  def test_a_dry_run_prints_what_is_run_and_runs_nothing(self):
    dry = self._run('--dry-run')
    self.assertEmpty(self.place.calls())
    printed = launching.commands(dry, 'kubectl')
    self._run()
    ran = [
      c if c[-1] != '--filename=-' else [*c, '<<END'] for c in self.calls()
    ]
    # The name of the pod is Kubernetes's to choose.
    ran = [[w.removesuffix('-0-0-0') + '-0-0' if 'slice' in w else w for w in c]
           for c in ran]  # fmt: skip
    self.assertEqual(printed, ran)
    manifest = dry.split("<<'END'\n")[1].split('\nEND\n')[0]
    about = json.loads((self.place.cloud / 'jobset.json').read_text())
    self.assertEqual(yaml.safe_load(manifest), about['manifest'])

  def calls(self):
    return self.place.calls('kubectl')


if __name__ == '__main__':
  absltest.main()
