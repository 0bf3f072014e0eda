"""Turns draws into judged groups: sample, decode, grade."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from dapo_jax.data import records
from dapo_jax.rewards import reward
from dapo_jax.sampling import scheduler

Sample = Callable[
  [Sequence[scheduler.Request]],
  Iterator[tuple[int, tuple[scheduler.Completion, ...]]],
]
Judge = Callable[[records.Prompt, str, int], reward.Judgement]


def collect(
  draws: Sequence[records.Draw],
  *,
  encode: Callable[[records.Prompt], np.ndarray],
  sample: Sample,
  decode: Callable[[Sequence[int]], str],
  judge: Judge,
  samples_per_prompt: int,
) -> list[records.Group]:
  """Returns a judged group for every draw, in the order of the draws.

  Groups are graded between two decode chunks, as they are complete; the order
  of completion leaves no trace.

  Args:
    draws: the prompts, each with its ordinal.
    encode: gives a prompt's token ids.
    sample: yields (number of the request, its completions) in any order.
    decode: gives the text of token ids, before a stop string.
    judge: gives the verdict on (prompt, text, length in tokens).
    samples_per_prompt: G.
  """
  requests = [
    scheduler.Request(d.ordinal, encode(d.prompt), samples_per_prompt)
    for d in draws
  ]
  groups: dict[int, records.Group] = {}
  for index, completions in sample(requests):
    responses = tuple(_response(c, decode) for c in completions)
    groups[index] = _judged(
      draws[index], requests[index].prompt_tokens, responses, judge
    )
  return [groups[i] for i in range(len(draws))]


def truncated_as_wrong(group: records.Group, *, wrong: float) -> records.Group:
  """Returns the group with responses that were cut off judged as wrong.

  That is naive GRPO's treatment of truncation (DAPO 3.4): the policy is told
  that the reasoning was bad, though only its length was. One without an answer
  that earns less than a wrong one still does: nothing is raised.
  """
  truncated = np.array([r.is_truncated for r in group.responses])
  return group._replace(
    correct=group.correct & ~truncated,
    correctness=np.where(
      truncated, np.minimum(group.correctness, wrong), group.correctness
    ),
  )


def _response(
  completion: scheduler.Completion, decode: Callable[[Sequence[int]], str]
) -> records.Response:
  tokens = completion.tokens.tolist()
  text = decode(tokens[:-1] if completion.finish == 'eos' else tokens)
  return records.Response(
    tokens=completion.tokens,
    logp_sampler=completion.logp,
    finish=completion.finish,
    text=text,
  )


def _judged(
  draw: records.Draw,
  prompt_tokens: np.ndarray,
  responses: Iterable[records.Response],
  judge: Judge,
) -> records.Group:
  responses = tuple(responses)
  verdicts = [judge(draw.prompt, r.text, len(r.tokens)) for r in responses]
  return records.Group(
    draw=draw,
    prompt_tokens=prompt_tokens,
    responses=responses,
    correct=np.array([v.correct for v in verdicts], bool),
    correctness=np.array([v.correctness for v in verdicts], np.float64),
    overlong=np.array([v.overlong for v in verdicts], np.float64),
    extracted=tuple(v.extracted for v in verdicts),
  )
