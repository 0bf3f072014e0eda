"""The keys of the update: advantages, objective, critic, optimizer, batches.

See `base`, which puts them together with the others.
"""

from ml_collections import config_dict


def advantage():
  """Returns the keys of `advantage`."""
  return dict(
    # 'group' = over the other responses to the prompt (GRPO, DAPO eq. 9),
    # 'smooth' = over the prompt's earlier visits too (SAS, DCPO eqs. 5-7),
    # 'gae' = over what a critic expects (PPO, DAPO 2.1).
    estimator='group',
    # Delta degrees of freedom of the standard deviation: 1 as in the
    # published code, 0 = population (DCPO A.7).
    ddof=1,
    # 'group' = divide by the group's standard deviation (DAPO eq. 9),
    # 'batch' = by that of the whole step, 'none' = leave the centred rewards
    # as they are (Dr. GRPO).
    scale='group',
    # 'mean' of the group, or 'leave_one_out' = of the other responses (RLOO).
    baseline='mean',
    # Visits of a prompt that SAS remembers; None = all (DCPO).
    history_window_visits=config_dict.placeholder(int),
    # Factor of what SAS remembers, at each visit; 1 = forget nothing (DCPO).
    history_decay=1.0,
    # Of 'gae': discount of a token, lambda (DAPO 2.1), and whether the
    # advantages of a step get mean 0 and deviation 1.
    gamma=1.0,
    gae_lambda=0.95,
    whiten=True,
  )


def critic():
  """Returns the keys of `critic`."""
  return dict(
    # Whether the policy's layers are the critic's too; else it has its own,
    # which begin as a copy of the policy's.
    shares_layers=False,
    # Coefficient of the value loss, where layers are shared.
    coef=0.5,
    # Largest move of a value from what it was before the rollout's updates,
    # in units of reward; None = no bound.
    value_clip=config_dict.placeholder(float),
    # Of a critic with layers of its own; the rest is as in `optim`.
    lr=1e-5,
    warmup_steps=20,
    max_grad_norm=1.0,
  )


def objective():
  """Returns the keys of `objective`."""
  return dict(
    # Importance ratio: 'token' (PPO, DAPO) or 'sequence' (GSPO: the mean
    # log-ratio of a response, for all of its tokens).
    ratio='token',
    # Bounds of the ratio: 'fixed' (1 - clip_low, 1 + clip_high) or 'dac'
    # (DCPO eq. 4, from the token's old probability, and clip_low, clip_high).
    bounds='fixed',
    # DAPO 4.1: 0.2, 0.28. DCPO A.9: 0.16, 0.2. A clip_low of 1 is no lower
    # bound.
    clip_low=0.2,
    clip_high=0.28,
    # Largest upper bound of 'dac' (DCPO A.9: 10).
    ratio_max=10.0,
    # 'clipped' (PPO) or 'cispo' (every token keeps its gradient, its weight
    # is clipped).
    surrogate='clipped',
    # Bound on the ratio where the advantage is negative; None as in the
    # paper (the published script: 10; DCPO A.9: 10).
    dual_clip=config_dict.placeholder(float),
    # Bound on the log-ratio before exp, [nats]; None as in the papers (the
    # published DAPO code: 20).
    log_ratio_clamp=config_dict.placeholder(float),
    # Weight of a token's loss: 'token_mean' (over the minibatch),
    # 'group_token_mean' (DAPO eq. 8 as printed), 'sequence_mean' (GRPO),
    # 'only_token_mean' (DCPO eq. 8) or 'constant' (Dr. GRPO).
    aggregation='token_mean',
    # Whether responses that are left out of the loss are still counted.
    count_masked=False,
    # Coefficient of the divergence from the policy that the run started
    # from; 0 = none, as in DAPO and DCPO (GRPO's published script: 0.001).
    kl_coef=0.0,
    # 'k1', 'k2' or 'k3'; as a loss or taken off the reward.
    kl_estimator='k3',
    kl_place='loss',
    # The estimator's value with the gradient of k2.
    kl_straight_through=False,
    # Coefficient of the entropy bonus.
    entropy_coef=0.0,
    # Correction of the gap between sampler and trainer: 'none', or by the
    # importance of a token or of a whole response, bounded or masked beyond
    # the limit: 'token_truncate', 'token_mask', 'sequence_truncate',
    # 'sequence_mask'.
    sampler_correction='none',
    sampler_correction_limit=2.0,
  )


def optim():
  """Returns the keys of `optim`."""
  return dict(
    # AdamW, constant after the warm-up (DAPO 4.1: 1e-6).
    lr=1e-6,
    # lr(s) = lr * min(1, (s + 1) / warmup_steps), s = rollout step (DAPO
    # 4.1: 20).
    warmup_steps=20,
    b1=0.9,
    b2=0.999,
    eps=1e-8,
    # Decoupled weight decay of all weights but norms and biases (the script:
    # 0.1).
    weight_decay=0.1,
    # Largest global norm of the gradient (the script: 1.0).
    max_grad_norm=1.0,
    # An update whose loss or gradient is not finite moves nothing; after so
    # many in a row the run stops.
    max_skipped_updates=3,
  )


def learner():
  """Returns the keys of `learner`."""
  return dict(
    # Whole groups in an optimizer update (DAPO 4.1: 32 x 16 = 512
    # responses, 16 updates a rollout).
    minibatch_prompts=32,
    # Passes over a rollout's groups (the script: 1).
    epochs=1,
    # Length of a packed row, [tokens]; None = the longest prompt and
    # response together.
    pack_tokens=config_dict.placeholder(int),
    # Let the responses of a group stand behind one copy of their prompt. None =
    # wherever attention can: all but splash, see model.attention.
    share_prompts=config_dict.placeholder(bool),
    # Packed rows in a forward and backward pass; None = one for each device
    # that rows are split over, mesh.data x mesh.fsdp.
    micro_batch_rows=config_dict.placeholder(int),
  )


def sft():
  """Returns the keys of `sft`."""
  return dict(
    # Most optimizer updates, and examples in each.
    steps=1000,
    examples_per_step=64,
    lr=1e-3,
    warmup_steps=20,
    # Held-out accuracy is measured every so many updates; training stops
    # when it is at least `stop_accuracy` (None = never).
    eval_every_steps=20,
    stop_accuracy=config_dict.placeholder(float),
  )
