"""The weight of a token in the loss: how losses are aggregated.

Every aggregation is one weighted sum, loss = sum_t w_t l_t, whose weights come
from the lengths in the whole minibatch. So no split of the minibatch into
micro-batches, packed rows or devices can change the update. Host only, NumPy
float64.

`only_token_mean` is of DCPO (arXiv 2509.02333), `constant` of Dr. GRPO (arXiv
2503.20783), the others of DAPO (arXiv 2503.14476) and GRPO.
"""

import numpy as np
from jaxtyping import Bool, Float64, Int, Shaped

MODES = (
  'token_mean',
  'group_token_mean',
  'sequence_mean',
  'only_token_mean',
  'constant',
)


def token_weights(
  lengths: Int[np.ndarray, 'B'],
  prompt_ids: Shaped[np.ndarray, 'B'],
  *,
  mode: str,
  max_response_tokens: int | None = None,
  keep: Bool[np.ndarray, 'B'] | None = None,
  count_masked: bool = False,
) -> Float64[np.ndarray, 'B']:
  """Returns the weight that each token of response i has in the loss.

  With |o_i| the length of response i, B responses and P prompts counted:

      token_mean        1 / sum_j |o_j|                   (verl's token-mean)
      group_token_mean  1 / (P sum_{j in group of i} |o_j|)  (DAPO eq. 8, 12)
      sequence_mean     1 / (B |o_i|)                        (GRPO)
      only_token_mean   1 / (P |o_i|)                        (DCPO eq. 8)
      constant          1 / (B max_response_tokens)          (Dr. GRPO)

  DAPO's equation is for one prompt; the mean over prompts makes it a minibatch
  loss. DCPO's equation sums over the responses of a prompt; so does ours,
  again with the mean over prompts.

  A response that `keep` leaves out, or that has no token, weighs 0 and is in
  no sum and no count; a prompt without a counted response is not in P. If none
  is left all weights are 0, so the loss is 0 and not NaN. (verl counts fully
  masked responses in B, gives NaN when all are masked, and sums over responses
  in its counterpart of `constant`.)

  With `count_masked` a response that `keep` leaves out still weighs 0 but stays
  in B, P and the sums of lengths: masking one does not make the others weigh
  more.

  Args:
    lengths: response lengths, [tokens].
    prompt_ids: which responses belong together: one id a *draw* of a prompt,
      so that a prompt drawn twice makes two groups. Integers or strings.
    mode: one of `MODES`.
    max_response_tokens: the divisor of 'constant', [tokens]; unused elsewhere.
    keep: False where a response is masked out; None keeps all.
    count_masked: whether masked responses stay in the divisors.

  Raises:
    ValueError: on an unknown mode, or 'constant' without a positive
      max_response_tokens.
  """
  counted = lengths > 0
  kept = counted if keep is None else counted & keep
  if not count_masked:
    counted = kept
  tokens = np.where(counted, lengths, 0).astype(np.float64)
  responses = np.count_nonzero(counted)
  _, group = np.unique(prompt_ids, return_inverse=True)
  group_tokens = np.bincount(group, weights=tokens)
  prompts = np.count_nonzero(group_tokens)
  if mode == 'token_mean':
    divisor = np.full_like(tokens, tokens.sum())
  elif mode == 'group_token_mean':
    divisor = prompts * group_tokens[group]
  elif mode == 'sequence_mean':
    divisor = responses * tokens
  elif mode == 'only_token_mean':
    divisor = prompts * tokens
  elif mode == 'constant':
    if max_response_tokens is None or max_response_tokens <= 0:
      raise ValueError(
        "aggregation 'constant' needs a positive max_response_tokens, got "
        f'{max_response_tokens}; change --config.rollout.max_response_tokens'
      )
    divisor = np.full_like(tokens, responses * max_response_tokens)
  else:
    raise ValueError(
      f'unknown aggregation {mode!r}; --config.objective.aggregation must be '
      f'one of {", ".join(MODES)}'
    )
  return np.divide(1.0, divisor, out=np.zeros_like(tokens), where=kept)
