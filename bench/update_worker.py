"""This package's update, on the line that `bench/update.py` sends.

A line asks for one measurement, each of what a run's step calls:

    uniform    16 responses of one length, one step of the optimizer
    ragged N   the first N of the ragged set, groups of 16, one step
    old N      the log-probs that are taken of them before
    step N     sampled, log-probs taken, one step
    growth N   log-probs taken, one step, in programs with room for 1,024
"""

import functools
import pathlib
import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import NamedTuple

_HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE.parent), str(_HERE / 'peers')]

import worker  # noqa: E402

args = worker.flags()

import jax  # noqa: E402
import lengths as lengths_lib  # noqa: E402
import ml_collections  # noqa: E402
import numpy as np  # noqa: E402
import random_model  # noqa: E402
from jax import monitoring  # noqa: E402

from configs import base  # noqa: E402
from dapo_jax.data import records  # noqa: E402
from dapo_jax.model import decoder  # noqa: E402
from dapo_jax.monitor import timers  # noqa: E402
from dapo_jax.parallel import mesh as mesh_lib  # noqa: E402
from dapo_jax.parallel import placement  # noqa: E402
from dapo_jax.rollout import shares  # noqa: E402
from dapo_jax.sampling import engine as engine_lib  # noqa: E402
from dapo_jax.sampling import limits as limits_lib  # noqa: E402
from dapo_jax.sampling import scheduler, token_choice  # noqa: E402
from dapo_jax.training import (  # noqa: E402
  learn,
  losses,
  minibatches,
  packing,
  trainer,
  update,
)

_LONGEST, _GROUP, _SLOTS = 256, 16, 32
# Most responses of the updates that are measured, and of those for `growth`.
_MOST, _MOST_GROWTH = 512, 1024


class _Run:
  """A trainer, and the state that its updates move."""

  def __init__(self, *, group: int, longest: int, responses: int):
    self.config = _config(group=group, longest=longest, responses=responses)
    model = random_model.made(args)
    mesh = mesh_lib.update_mesh(jax.devices()[:1], data=1, fsdp=1, tensor=1)
    parts = types.SimpleNamespace(
      model=model,
      mesh=mesh,
      train_prompts=[_prompt(0)],
      shares=shares.alone(),
    )
    self.trainer = trainer.make_trainer(
      self.config,
      parts,
      losses.policy_loss(self.config),
      temperature=1.0,
      with_critic=False,
    )
    where = self.trainer.programs.shardings
    params = decoder.random_params(model, 0, shardings=where.params)
    self.state = update.init_state(
      params, self.trainer.programs.optimizer, where
    )

  def pack(self, groups) -> list[packing.Packed]:
    """Returns the rows of the groups' minibatches."""
    parts = self.trainer.parts
    return minibatches.pack_groups(
      groups, self.config, parts.mesh, parts.shares
    )

  def update(self, groups) -> None:
    """Moves the policy by one step, as `learn` does."""
    for packed in self.pack(groups):
      advantages = packing.spread(
        np.resize([1.0, -1.0], len(packed.places)).tolist(),
        packed.places,
        shape=packed.rows.tokens.shape,
      )
      known = update.Experience(
        packed.rows.logp_sampler,
        placement.put_rows(advantages, self.trainer.parts.mesh),
      )
      self.state, stats = self.trainer.programs.update(
        self.state, packed.rows, known, packed.micro_batches, 1e-6
      )
      jax.block_until_ready(stats)

  def old_logprobs(self, groups) -> None:
    """Takes the log-probs of the policy."""
    for packed in self.pack(groups):
      jax.block_until_ready(
        self.trainer.programs.old_logprobs(
          self.state.params, packed.rows, packed.micro_batches
        )
      )

  def learn(self, groups) -> None:
    """Does all of a step that comes after its rollout."""
    self.state = learn.learn(
      self.trainer, self.state, groups, {}, timers.Timers(), step=1
    ).state


@functools.cache
def _run(*, group: int = _GROUP, longest: int = _LONGEST, responses=_MOST):
  return _Run(group=group, longest=longest, responses=responses)


def _config(
  *, group: int, longest: int, responses: int
) -> ml_collections.FrozenConfigDict:
  config = base.get_config()
  config.data.max_prompt_tokens = args.prompt
  config.rollout.max_response_tokens = longest
  config.rollout.responses_per_prompt = group
  config.rollout.prompts_per_step = responses // group
  config.learner.minibatch_prompts = responses // group
  return ml_collections.FrozenConfigDict(config)


def _prompt(number: int) -> records.Prompt:
  message = records.Message('user', str(number))
  return records.make_prompt('bench', [message], str(number))


class _Sampled(NamedTuple):
  """A response as a sampler gives it."""

  tokens: np.ndarray
  logp: np.ndarray


def _groups(
  sampled: Sequence[Sequence[_Sampled]], prompts: Sequence[np.ndarray]
) -> list[records.Group]:
  """Returns judged groups: of a group every second response is right."""
  return [
    records.Group(
      draw=records.Draw(number, 0, _prompt(number)),
      prompt_tokens=tokens,
      responses=tuple(
        records.Response(r.tokens, r.logp, 'length', '') for r in members
      ),
      correct=np.arange(len(members)) % 2 == 0,
      correctness=np.resize([1.0, -1.0], len(members)),
      format=np.zeros(len(members)),
      overlong=np.zeros(len(members)),
      extracted=('',) * len(members),
    )
    for number, (members, tokens) in enumerate(
      zip(sampled, prompts, strict=True)
    )
  ]


def _prompts(count: int) -> list[np.ndarray]:
  rng = np.random.default_rng(0)
  return [
    rng.integers(1, args.vocab, args.prompt).astype(np.int32)
    for _ in range(count)
  ]


def _made_up(
  lengths: Sequence[int], *, group: int = _GROUP
) -> list[records.Group]:
  """Returns groups of random responses of these lengths."""
  rng = np.random.default_rng(1)
  sampled = [
    [
      _Sampled(
        rng.integers(1, args.vocab, n).astype(np.int32),
        (-8.3 + 0.05 * rng.standard_normal(n)).astype(np.float32),
      )
      for n in lengths[i : i + group]
    ]
    for i in range(0, len(lengths), group)
  ]
  return _groups(sampled, _prompts(len(sampled)))


@functools.cache
def _engine() -> engine_lib.Engine:
  return engine_lib.Engine(
    random_model.made(args),
    random_model.NoTokenizer(),
    mesh_lib.local_mesh(),
    limits_lib.Limits(_SLOTS, args.prompt, _LONGEST),
    seed=0,
  )


def _rollout(run: _Run, lengths: Sequence[int]) -> list[records.Group]:
  """Returns groups that the engine sampled, of these lengths."""
  prompts = _prompts(len(lengths) // _GROUP)
  sampling = scheduler.Sampling(
    purpose=token_choice.Purpose.TRAIN,
    seed=0,
    choice=token_choice.Choice(temperature=1.0),
    limit_tokens=_LONGEST,
    chunk_tokens=32,
  )
  requests = [
    scheduler.Request(
      number, tokens, _GROUP, np.array(lengths[_GROUP * number :][:_GROUP])
    )
    for number, tokens in enumerate(prompts)
  ]
  engine = _engine()
  params = engine.place(run.state.params)
  sampled = dict(
    scheduler.generate(
      engine, params, requests, sampling, report=lambda _: None
    )
  )
  return _groups([sampled[n] for n in range(len(prompts))], prompts)


def _measure(question: str) -> dict[str, float]:
  what, _, count = question.partition(' ')
  if what == 'uniform':
    group = args.batch // 2
    run = _run(group=group, longest=args.tokens, responses=args.batch)
    groups = _made_up([args.tokens] * args.batch, group=group)
    return _timed(run, groups, lambda: run.update(groups))
  lengths = lengths_lib.read(int(count))
  run = _run(responses=_MOST_GROWTH) if what == 'growth' else _run()
  groups = _made_up(lengths)
  does = {
    'ragged': lambda: run.update(groups),
    'old': lambda: run.old_logprobs(groups),
    'growth': lambda: run.learn(groups),
    'step': lambda: run.learn(_rollout(run, lengths)),
  }
  return _timed(run, groups, does[what])


def _timed(
  run: _Run, groups: Sequence[records.Group], go: Callable[[], None]
) -> dict[str, float]:
  """Returns the times, how full rows were, and what was compiled meanwhile."""
  compiled = []
  listen = lambda name, *_, **__: compiled.append(name)
  monitoring.register_event_duration_secs_listener(listen)

  def tokens() -> int:
    go()
    return sum(
      len(g.prompt_tokens) + len(r.tokens) for g in groups for r in g.responses
    )

  found = worker.timed(tokens)
  monitoring.unregister_event_duration_listener(listen)
  begin_s = time.process_time()
  packed = run.pack(groups)
  return found | {
    'pack_s': time.process_time() - begin_s,
    'real_frac': minibatches.metrics(packed, epochs=1)['pack/real_token_frac'],
    'compiled_count': sum('backend_compile' in name for name in compiled),
  }


def main() -> None:
  """Answers; what it has not done before, it compiles."""
  shapes = random_model.made(args).shapes
  parameters = sum(x.size for x in jax.tree.leaves(shapes))
  about = {'tool': 'dapo_jax', 'parameters': parameters}
  worker.answer_lines(_measure, warm_up=[], about=about)


if __name__ == '__main__':
  main()
