"""Rollouts of uneven work, in one or several processes, for 20 seeds.

Which prompts are easy, hard or mixed is drawn from the seed, so that some
process often keeps no group at all; how long its graders take from the seed
and the process. Writes what came of each seed, which no delay may change.
"""

import hashlib
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

import numpy as np
from absl import app, flags

import tiny_run
from dapo_jax.parallel import job as job_lib
from dapo_jax.parallel import watch
from dapo_jax.rewards import reward
from dapo_jax.rollout import meter
from dapo_jax.training import (
  assemble,
  gather,
  losses,
  minibatches,
  trainer,
)

SEEDS = 20
CHANGES = {
  # Seven prompts a round: several processes never have the same number.
  'rollout.prompts_per_step': 5,
  'learner.minibatch_prompts': 5,
  'rollout.oversample': 1.4,
  'filter.max_rounds': 3,
  'mesh.fsdp': 8,
}

_MODEL = flags.DEFINE_string('model', None, 'Folder of the policy.')
_OUT = flags.DEFINE_string('out', None, 'File of what the first process finds.')
_COORDINATOR = flags.DEFINE_string('coordinator', None, '')
_PROCESSES = flags.DEFINE_integer('processes', None, '')
_PROCESS = flags.DEFINE_integer('process', None, '')


def outcomes(model: str, job: job_lib.Job) -> list[list]:
  """Returns what each seed gives: counts, groups, and sums over the rows."""
  config = tiny_run.config({**CHANGES, 'model.path': model})
  with tempfile.TemporaryDirectory() as folder:
    parts = assemble.build(config, folder, job)
  made = trainer.make_trainer(
    config,
    parts,
    losses.policy_loss(config),
    temperature=1.0,
    with_critic=False,
  )
  params = parts.to_engine(assemble.initial_params(config, parts))
  found = []
  for seed in range(SEEDS):
    judged = made._replace(parts=parts._replace(judge=_judge(seed, job)))
    filled = gather.gather(
      judged,
      params,
      first_ordinal=13 * seed,
      metered=meter.Meter(parts.grader.counts),
      on_chunk=lambda *_: None,
      check=lambda: None,
    )
    packed = minibatches.pack_groups(
      filled.groups, config, parts.mesh, parts.shares
    )
    found.append(
      [
        [int(n) for n in filled.tally],
        filled.next_ordinal,
        [[g.draw.ordinal, g.correct.tolist()] for g in filled.groups],
        [[len(r.tokens) for r in g.responses] for g in filled.groups],
        [_digest(p.rows) for p in packed],
      ]
    )
  return found


def _digest(rows) -> list[float]:
  """Returns sums over all rows, which a wrong token or place would change."""
  import jax.numpy as jnp

  place = jnp.arange(1.0, rows.tokens.size + 1).reshape(rows.tokens.shape)
  return [float(jnp.sum(jnp.sin(place * (1.0 + field)))) for field in rows]


def _judge(seed: int, job: job_lib.Job):
  """Returns a judge whose verdicts follow from the seed and the text."""
  slow = random.Random(f'{seed} {job.index}')
  delay_s = slow.choice([0.0, 0.0, 0.02, 0.05])

  def judge(prompt, text, length_tokens):
    del length_tokens
    time.sleep(delay_s)
    kind = _number(seed, prompt.id) % 4
    right = kind == 1
    if kind > 1:
      right = _number(seed, prompt.id, text) % 2 == 0
    return reward.Judgement(
      correct=right,
      correctness=1.0 if right else -1.0,
      format=0.0,
      overlong=0.0,
      extracted=text,
    )

  return judge


def _number(*parts: object) -> int:
  text = json.dumps(parts).encode()
  return int.from_bytes(hashlib.sha256(text).digest()[:4], 'big')


def main(argv: list[str]) -> None:
  """Writes the outcomes, in the first process."""
  del argv
  hooks = watch.Hooks(
    stop=lambda: os.kill(os.getpid(), signal.SIGTERM),
    leave=lambda status, line: (print(line), os._exit(status)),
    tell=print,
  )
  launch = job_lib.Launch(
    coordinator=_COORDINATOR.value,
    processes=_PROCESSES.value,
    process=_PROCESS.value,
  )
  with job_lib.started(launch, hooks=hooks, quiet_s=60.0) as job:
    found = outcomes(_MODEL.value, job)
    if job.is_first:
      pathlib.Path(_OUT.value).write_text(json.dumps(found))


if __name__ == '__main__':
  sys.path.insert(0, os.path.dirname(__file__))
  np.seterr(all='raise', under='ignore')
  app.run(main)
