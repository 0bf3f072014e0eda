"""Turns draws into judged groups: sample, decode, grade."""

import contextlib
from collections.abc import Callable, Generator, Sequence

import numpy as np

from dapo_jax.data import records
from dapo_jax.rollout import grading as grading_lib
from dapo_jax.rollout import shares as shares_lib
from dapo_jax.sampling import scheduler

Sample = Callable[
  [Sequence[scheduler.Request]],
  Generator[tuple[int, tuple[scheduler.Completion, ...]], None, None],
]


def collect(
  draws: Sequence[records.Draw],
  *,
  encode: Callable[[records.Prompt], np.ndarray],
  sample: Sample,
  decode: Callable[[Sequence[int]], str],
  grading: grading_lib.Grading,
  samples_per_prompt: int,
  shares: shares_lib.Shares,
) -> list[records.Group]:
  """Returns a judged group for every draw of our own, in their order.

  Groups go to the graders as they are complete, and sampling does not wait for
  them; the order of completion and of the verdicts leaves no trace. When
  a judge raises, sampling is ended at the next group that is complete.

  Args:
    draws: the prompts, each with its ordinal.
    encode: gives a prompt's token ids.
    sample: yields (number of the request, its completions) in any order.
    decode: gives the text of token ids, before a stop string.
    grading: how the responses are judged.
    samples_per_prompt: G.
    shares: which draws are our own; the others are sampled for the sake of
      the engine, of which another process has a part.

  Raises:
    JudgeError: a judge raised; names the prompt and the response.
    MissingVerdictsError: verdicts are missing too long after the last response.
  """
  requests = [
    scheduler.Request(d.ordinal, encode(d.prompt), samples_per_prompt)
    for d in draws
  ]
  with grading_lib.Graders(grading) as graders:
    with contextlib.closing(sample(requests)) as sampled:
      for index, completions in sampled:
        if not shares.is_own(draws[index].ordinal):
          continue
        for g, completion in enumerate(completions):
          # Decoded here, while the device decodes on: several threads that
          # compute in Python would hold up the dispatch of the next chunk.
          response = _response(completion, decode)
          graders.submit((index, g), draws[index].prompt, response)
        # The processes of an engine decode to the end, or none does.
        if shares.hosts == 1:
          graders.look()
    graded = graders.finish()
  members: list[list[grading_lib.Graded]] = [[] for _ in draws]
  for index, g in sorted(graded):
    members[index].append(graded[index, g])
  return [
    _group(draw, request.prompt_tokens, found)
    for draw, request, found in zip(draws, requests, members, strict=True)
    if shares.is_own(draw.ordinal)
  ]


def truncated_as_wrong(group: records.Group, *, wrong: float) -> records.Group:
  """Returns the group with responses that were cut off judged as wrong.

  That is naive GRPO's treatment of truncation (DAPO 3.4): the policy is told
  that the reasoning was bad, though only its length was. What earns less than
  a wrong answer still does: nothing is raised.
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


def _group(
  draw: records.Draw,
  prompt_tokens: np.ndarray,
  graded: Sequence[grading_lib.Graded],
) -> records.Group:
  responses, verdicts = zip(*graded, strict=True)
  return records.Group(
    draw=draw,
    prompt_tokens=prompt_tokens,
    responses=responses,
    correct=np.array([v.correct for v in verdicts], bool),
    correctness=np.array([v.correctness for v in verdicts], np.float64),
    format=np.array([v.format for v in verdicts], np.float64),
    overlong=np.array([v.overlong for v in verdicts], np.float64),
    extracted=tuple(v.extracted for v in verdicts),
  )
