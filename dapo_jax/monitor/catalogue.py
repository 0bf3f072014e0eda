"""Every metric: its name, its unit and its definition.

A name is `group/name_unit`; a quantity without a unit has no suffix. The
writers refuse a name that is not here. A metric that was not computed is
absent from a step: there are no made-up zeros.
"""

import difflib
from collections.abc import Iterable
from typing import NamedTuple


class Metric(NamedTuple):
  """What a metric's number means."""

  # 'count', 'tokens', 's', 'frac' (0 to 1), 'nats', 'tokens/s' or '' (none).
  unit: str
  definition: str


METRICS: dict[str, Metric] = {
  # Totals since the run began, this step included.
  'step/rollout_step_count': Metric(
    'count', 'Rollout steps done since the run began.'
  ),
  'step/update_count': Metric(
    'count', 'Optimizer updates done since the run began.'
  ),
  'step/round_count': Metric(
    'count', 'Generation rounds done since the run began, refills included.'
  ),
  'step/prompt_count': Metric(
    'count', 'Prompts drawn since the run began, filtered ones included.'
  ),
  'step/token_count': Metric(
    'count', 'Response tokens sampled since the run began.'
  ),
  # Rewards of the groups that are trained on, after the filter.
  'reward/mean': Metric(
    '', 'Mean reward of the trained responses, all components added.'
  ),
  'reward/correctness_mean': Metric(
    '', 'Mean correctness component of the reward of the trained responses.'
  ),
  'reward/format_mean': Metric(
    '',
    'Mean format component of the reward of the trained responses: what it '
    'costs to have no answer.',
  ),
  'reward/overlong_mean': Metric(
    '', 'Mean overlong component of the reward of the trained responses.'
  ),
  'reward/correct_frac': Metric(
    'frac', 'Share of the trained responses whose answer is right.'
  ),
  'reward/first_round_correct_frac': Metric(
    'frac',
    'Share of right answers in all responses of the first round, before the '
    'filter: the accuracy on training prompts.',
  ),
  'reward/no_answer_frac': Metric(
    'frac',
    'Share of the responses of the first round in which no answer is found.',
  ),
  'reward/verify_timeout_count': Metric(
    'count',
    'Answers whose comparison with the gold answer took more than its limit in '
    'this step; each is counted once, and as wrong.',
  ),
  'reward/verify_error_count': Metric(
    'count',
    'Answers whose comparison with the gold answer failed in this step, by an '
    'error, for lack of memory or by a crash; each is counted once, and as '
    'wrong.',
  ),
  # Lengths of the trained responses, EOS included.
  'response/length_mean_tokens': Metric(
    'tokens', 'Mean length of the trained responses, EOS included.'
  ),
  'response/length_max_tokens': Metric(
    'tokens', 'Longest trained response, EOS included.'
  ),
  'response/length_min_tokens': Metric(
    'tokens', 'Shortest trained response, EOS included.'
  ),
  'response/truncated_frac': Metric(
    'frac', 'Share of the trained responses cut off at the most tokens.'
  ),
  'response/eos_length_mean_tokens': Metric(
    'tokens', 'Mean length of the trained responses that were not cut off.'
  ),
  # Dynamic sampling.
  'filter/rounds_count': Metric('count', 'Generation rounds of this step.'),
  'filter/drawn_prompts_count': Metric(
    'count', 'Prompts drawn in this step, over all rounds.'
  ),
  'filter/kept_prompts_count': Metric(
    'count', 'Drawn prompts that passed the filter; all of them when it is off.'
  ),
  'filter/trained_prompts_count': Metric(
    'count', 'Prompts whose groups are trained on in this step.'
  ),
  'filter/surplus_prompts_count': Metric(
    'count', 'Kept prompts beyond those needed, which are dropped.'
  ),
  'filter/all_right_prompts_count': Metric(
    'count', 'Drawn prompts with right answers only.'
  ),
  'filter/all_wrong_prompts_count': Metric(
    'count', 'Drawn prompts with wrong answers only.'
  ),
  'filter/kept_frac': Metric('frac', 'Kept prompts over drawn prompts.'),
  'filter/skipped_update_count': Metric(
    'count', '1 when no group was left to train on in this step, else 0.'
  ),
  # The policy against the one that sampled, over the trained tokens.
  'advantage/used_frac': Metric(
    'frac',
    'Share of all generated responses that are in the loss with an advantage '
    'that is not 0: the response utilization ratio, RUR (DCPO eq. 10).',
  ),
  'advantage/used_of_trained_frac': Metric(
    'frac',
    'Share of the trained responses that are in the loss with an advantage '
    'that is not 0.',
  ),
  'advantage/used_groups_frac': Metric(
    'frac', 'Share of the trained groups with such a response.'
  ),
  'advantage/abs_mean': Metric(
    '',
    'Mean absolute advantage of the trained responses, 0 of those left out of '
    'the loss.',
  ),
  'advantage/visits_mean_count': Metric(
    'count',
    'Mean number of visits that SAS remembers of the trained prompts, this '
    'step included; at 1 it is plain group normalisation.',
  ),
  'policy/loss': Metric(
    '',
    "Loss of the policy's updates, all of its terms added, mean over the "
    'updates of this step.',
  ),
  'policy/entropy_nats': Metric(
    'nats',
    'Mean entropy of the next-token distribution over the whole vocabulary.',
  ),
  'policy/ratio_mean': Metric('', 'Mean importance ratio.'),
  'policy/ratio_max': Metric('', 'Largest importance ratio.'),
  'policy/ratio_min': Metric('', 'Smallest importance ratio.'),
  'policy/effective_sample_frac': Metric(
    'frac',
    'Effective sample size of the ratios over the number of tokens, (sum r)^2'
    ' / (n sum r^2).',
  ),
  'policy/kl_old_nats': Metric(
    'nats',
    'Mean of r - 1 - log r: the divergence from the policy before the first '
    'update (k3).',
  ),
  'policy/clipped_frac': Metric(
    'frac', 'Share of tokens that any bound acts on (TCR).'
  ),
  'policy/clipped_nonzero_frac': Metric(
    'frac', 'Share of the tokens with advantage not 0 that any bound acts on.'
  ),
  'policy/clipped_micro_batch_frac': Metric(
    'frac',
    'Mean over micro-batches, of whatever size, of their policy/clipped_frac '
    '(DCPO eq. 9); it depends on the split.',
  ),
  'policy/clipped_high_frac': Metric(
    'frac', 'Share of tokens with advantage > 0 and a ratio above its bound.'
  ),
  'policy/clipped_low_frac': Metric(
    'frac', 'Share of tokens with advantage < 0 and a ratio below its bound.'
  ),
  'policy/clipped_dual_frac': Metric(
    'frac', 'Share of tokens with advantage < 0 and a ratio above dual_clip.'
  ),
  'policy/clipped_high_of_positive_frac': Metric(
    'frac',
    'Share of the tokens with advantage > 0 whose ratio is above its bound.',
  ),
  'policy/clipped_low_of_negative_frac': Metric(
    'frac',
    'Share of the tokens with advantage < 0 whose ratio is below its bound.',
  ),
  'policy/clipped_dual_of_negative_frac': Metric(
    'frac',
    'Share of the tokens with advantage < 0 whose ratio is above dual_clip.',
  ),
  'policy/clipped_high_mean_prob': Metric(
    '', 'Mean probability of the tokens whose ratio is clipped from above.'
  ),
  'policy/clipped_response_frac': Metric(
    'frac', 'Share of responses all of whose tokens are clipped.'
  ),
  'policy/mean_prob': Metric(
    '', 'Mean probability of the sampled tokens, before the first update.'
  ),
  'policy/reference_kl_nats': Metric(
    'nats',
    'Mean divergence of the policy from the reference (estimator k3) over the '
    'trained tokens, before the first update.',
  ),
  'policy/sampler_gap_mean_nats': Metric(
    'nats', "Mean |difference| of the sampler's and the trainer's log-probs."
  ),
  'policy/sampler_gap_max_nats': Metric(
    'nats', "Largest |difference| of the sampler's and the trainer's log-probs."
  ),
  'policy/sampler_weight_mean': Metric(
    '',
    "Mean weight of a token for the sampler's gap, of runs with "
    'objective.sampler_correction.',
  ),
  'policy/sampler_left_out_frac': Metric(
    'frac',
    'Share of tokens that objective.sampler_correction leaves out: those with '
    'weight 0.',
  ),
  'critic/square_error_mean': Metric(
    '',
    'Mean square of return - value over the trained tokens, during the '
    'updates.',
  ),
  'critic/clipped_frac': Metric(
    'frac', 'Share of tokens whose value is held back by critic.value_clip.'
  ),
  'critic/explained_frac': Metric(
    'frac',
    'Share of the variance of returns that the values explain, before the '
    'first update; below 0 they are worse than their mean.',
  ),
  'critic/skipped_update_count': Metric(
    'count',
    'Updates of this step of a critic with layers of its own that moved '
    'nothing, for their loss or gradient was not finite.',
  ),
  'critic/grad_norm': Metric(
    '',
    'Global norm of the gradient of a critic with layers of its own, before '
    'clipping, mean over the updates of this step.',
  ),
  'optim/lr': Metric('', 'Learning rate of this step.'),
  'optim/grad_norm': Metric(
    '',
    'Global norm of the gradient before clipping, mean over the updates of '
    'this step.',
  ),
  'optim/skipped_update_count': Metric(
    'count',
    'Updates of this step that moved nothing, for their loss or gradient was '
    'not finite; the other metrics leave them out.',
  ),
  'optim/update_count': Metric('count', 'Optimizer updates of this step.'),
  'optim/micro_batch_count': Metric(
    'count', 'Forward and backward passes of this step.'
  ),
  'pack/real_token_frac': Metric(
    'frac',
    'Prompt and response tokens over all places of rows that are computed.',
  ),
  'sampler/tokens_per_s': Metric(
    'tokens/s',
    'Response tokens a second of sampling, the wait for verdicts left out.',
  ),
  'sampler/slots_busy_frac': Metric(
    'frac', 'Share of slots holding an unfinished sequence, mean over decode.'
  ),
  'sampler/decode_steps_count': Metric(
    'count', 'Decode steps of this step, each of one token for all slots.'
  ),
  'sampler/prefill_count': Metric('count', 'Prompts prefilled in this step.'),
  'sampler/evicted_count': Metric(
    'count', 'Responses begun again because the pool of pages was empty.'
  ),
  'sampler/lost_tokens_frac': Metric(
    'frac', 'Share of the sampled tokens that these responses had before.'
  ),
  'time/step_s': Metric(
    's', 'Wall time of rollout and updates; evaluation and saving are apart.'
  ),
  'time/rollout_s': Metric(
    's', 'Wall time of sampling and judging, the way of the weights included.'
  ),
  'time/sampler_host_frac': Metric(
    'frac',
    'Share of the sampling time in which the host filled slots and the device '
    'had nothing to do.',
  ),
  'time/reward_s': Metric(
    's',
    'Seconds of judging responses, of all threads together; they judge while '
    'the sampler goes on.',
  ),
  'time/reward_wait_s': Metric(
    's',
    'Wall time from the last response of a round to its last verdict, over '
    'the rounds of this step; a part of the rollout.',
  ),
  'time/old_logp_s': Metric(
    's',
    "Wall time of the trainer's log-probs, the reference's and the critic's "
    'values before the first update.',
  ),
  'time/update_s': Metric('s', 'Wall time of the updates.'),
  'time/eval_s': Metric('s', 'Wall time of the evaluation.'),
  'eval/accuracy_frac': Metric(
    'frac', 'Mean over problems of the share of right samples (avg@k).'
  ),
  'eval/accuracy_stderr_frac': Metric(
    'frac', 'Standard error of eval/accuracy_frac over problems.'
  ),
  'eval/pass_frac': Metric(
    'frac', 'Share of problems with at least one right sample (pass@k).'
  ),
  'eval/length_mean_tokens': Metric(
    'tokens', 'Mean length of the samples, EOS included.'
  ),
  'eval/truncated_frac': Metric(
    'frac', 'Share of the samples cut off at the most tokens.'
  ),
  'eval/prompts_count': Metric('count', 'Problems evaluated.'),
  'eval/samples_per_prompt_count': Metric('count', 'Samples of each, k.'),
  'sft/loss': Metric(
    '', 'Mean negative log-prob of the response tokens of an update, [nats].'
  ),
  'sft/step_count': Metric('count', 'Supervised updates done.'),
}


def check(names: Iterable[str]) -> None:
  """Checks that every name is in the catalogue.

  Raises:
    ValueError: naming each unknown metric and the nearest known one.
  """
  unknown = [name for name in names if name not in METRICS]
  if not unknown:
    return
  hints = []
  for name in unknown:
    near = difflib.get_close_matches(name, METRICS, n=1)
    hints.append(f'{name} (nearest: {near[0]})' if near else name)
  raise ValueError(f'not in dapo_jax/monitor/catalogue.py: {", ".join(hints)}')
