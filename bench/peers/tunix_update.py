"""Tunix's GRPO update, on the line that `bench/update.py` sends.

    uniform    16 responses of one length, one step of the optimizer
    ragged N   the first N of the ragged set, one step; groups of 16 at a time

Its learner pads every response to the longest that may be sampled, and does so
here; its packing needs a TPU's attention kernel.
"""

import functools
from importlib import metadata

import worker

args = worker.flags()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import ragged  # noqa: E402
import tunix_model  # noqa: E402
from flax import nnx  # noqa: E402
from tunix.rl import rl_cluster as cluster_lib  # noqa: E402
from tunix.rl.grpo import grpo_learner  # noqa: E402
from tunix.rl.rollout import base_rollout  # noqa: E402

_NEVER_STEPS = 10**9


@functools.cache
def trainer(longest: int, micro_batches: int):
  """Returns a cluster with a model of its own, as a learner sets it up."""
  roles = cluster_lib.Role
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1])[None], ('fsdp', 'tp'))
  cluster = cluster_lib.RLCluster(
    actor=tunix_model.made(args),
    reference=None,
    tokenizer=tunix_model.Tokenizer(),
    cluster_config=cluster_lib.ClusterConfig(
      role_to_mesh=dict.fromkeys(
        (roles.ACTOR, roles.REFERENCE, roles.ROLLOUT), mesh
      ),
      rollout_engine='vanilla',
      offload_to_cpu=False,
      training_config=cluster_lib.RLTrainingConfig(
        actor_optimizer=optax.chain(
          optax.clip_by_global_norm(1.0), optax.adamw(1e-6, weight_decay=0.1)
        ),
        eval_every_n_steps=_NEVER_STEPS,
        max_steps=_NEVER_STEPS,
        mini_batch_size=micro_batches,
        train_micro_batch_size=1,
      ),
      rollout_config=base_rollout.RolloutConfig(
        max_tokens_to_generate=longest,
        max_prompt_length=args.prompt,
        kv_cache_size=args.prompt + longest,
        temperature=1.0,
        top_p=1.0,
        top_k=None,
        eos_tokens=[tunix_model.NEVER],
      ),
    ),
  )
  # The learner gives the trainer its loss.
  grpo_learner.GRPOLearner(
    cluster,
    grpo_learner.GRPOConfig(
      num_generations=ragged.GROUP,
      beta=0.0,
      epsilon=0.2,
      loss_agg_mode='token-mean',
    ),
    lambda prompts, completions, **_: [0.0] * len(completions),
  )
  return cluster


def update(batches: list[ragged.Batch], longest: int) -> int:
  """Makes one step of the optimizer; returns the useful tokens."""
  cluster = trainer(longest, len(batches))
  examples = [
    grpo_learner.TrainExample(
      prompt_ids=jnp.asarray(b.prompts),
      prompt_mask=jnp.ones(b.prompts.shape, bool),
      completion_ids=jnp.asarray(b.responses),
      completion_mask=jnp.asarray(b.mask),
      ref_per_token_logps=None,
      advantages=jnp.asarray(b.advantages),
      old_per_token_logps=jnp.asarray(b.logp_old),
    )
    for b in batches
  ]
  cluster.update_actor(examples, None, False)
  jax.block_until_ready(nnx.state(cluster.actor_trainer.model, nnx.Param))
  return sum(b.useful_tokens for b in batches)


def answer(question: str) -> dict[str, float]:
  """Returns what one update took."""
  sizes = {'prompt_tokens': args.prompt, 'vocab': args.vocab}
  if question == 'uniform':
    lengths, longest = [args.tokens] * args.batch, args.tokens
  else:
    lengths, longest = ragged.asked(question), ragged.LONGEST
  batches = ragged.batches(lengths, pad_to=longest, **sizes)
  return worker.timed(lambda: update(batches, longest))


worker.answer_lines(
  answer,
  warm_up=['uniform', 'uniform', 'ragged 32', 'ragged 32'],
  about={
    'tool': 'tunix',
    'version': metadata.version('google-tunix'),
    'jax': metadata.version('jax'),
  },
)
