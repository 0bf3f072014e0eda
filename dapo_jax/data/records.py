"""What travels from the data to the update: prompts, responses, groups.

Host only. `P` prompts, `G` responses to a prompt, `T` tokens.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64


class Message(NamedTuple):
  """One turn of a conversation."""

  role: str
  content: str


class Prompt(NamedTuple):
  """One problem with its right answer."""

  # Content hash, the same in every run and in every order: see `prompt_id`.
  id: str
  dataset: str
  messages: tuple[Message, ...]
  gold: str
  # A response that would be right, for supervised training; '' = unknown.
  solution: str
  # What the verifier of a generated task needs, as JSON: see `data.tasks`;
  # '' = answers are judged against `gold`.
  task: str = ''
  # What data.mixture names it by; '' = there is no mixture.
  source: str = ''


class Draw(NamedTuple):
  """One prompt taken from the stream."""

  # Place in the one global order of draws, from 0; never reset.
  ordinal: int
  epoch: int
  prompt: Prompt


class Response(NamedTuple):
  """One sampled response."""

  # The end-of-sequence token is included where it was sampled.
  tokens: Int32[np.ndarray, 'T']
  # Log-probability of each token as the sampler saw it, in nats.
  logp_sampler: Float32[np.ndarray, 'T']
  # 'eos', 'stop' by a stop string, or 'length': it was cut off.
  finish: str
  # The tokens as text, without special tokens and before a stop string.
  text: str

  @property
  def is_truncated(self) -> bool:
    """Whether it was cut off before it ended."""
    return self.finish == 'length'


class Group(NamedTuple):
  """All responses to one draw, judged."""

  draw: Draw
  prompt_tokens: Int32[np.ndarray, 'T']
  responses: tuple[Response, ...]
  # The verdict, and the parts of the reward, of each response.
  correct: Bool[np.ndarray, 'G']
  correctness: Float64[np.ndarray, 'G']
  format: Float64[np.ndarray, 'G']
  overlong: Float64[np.ndarray, 'G']
  # The answer read from each response; what it is for none, the scorer says.
  extracted: tuple[str, ...]


def prompt_id(dataset: str, messages: Sequence[Message], gold: str) -> str:
  """Returns the content hash of a prompt, 16 hexadecimal digits.

  The fields are hashed as one JSON document, so that no two different
  prompts are the same bytes, however their texts are split over the fields.
  The solution is no part of it: it says nothing about the task. Nor is `task`:
  the question and its answer name that.

  Args:
    dataset: name of the data set.
    messages: the conversation up to the response.
    gold: the right answer.
  """
  fields = [dataset, [[m.role, m.content] for m in messages], gold]
  document = json.dumps(fields, ensure_ascii=True, separators=(',', ':'))
  return hashlib.sha256(document.encode('ascii')).hexdigest()[:16]


def make_prompt(
  dataset: str,
  messages: Sequence[Message],
  gold: str,
  *,
  solution: str = '',
  task: str = '',
) -> Prompt:
  """Returns a prompt with the id that its content gives it."""
  return Prompt(
    id=prompt_id(dataset, messages, gold),
    dataset=dataset,
    messages=tuple(messages),
    gold=gold,
    solution=solution,
    task=task,
  )


def elsewhere(length_tokens: int, finish: str) -> Response:
  """Returns a response that another process has: its length and its end.

  Its tokens and their log-probs are 0, and it has no text.
  """
  return Response(
    tokens=np.broadcast_to(np.int32(0), length_tokens),
    logp_sampler=np.broadcast_to(np.float32(0), length_tokens),
    finish=finish,
    text='',
  )


def group_rewards(group: Group) -> Float64[np.ndarray, 'G']:
  """Returns the reward of each response: the sum of its parts."""
  return group.correctness + group.format + group.overlong


def correct_count(group: Group) -> int:
  """Returns how many responses of the group are right."""
  return int(np.count_nonzero(group.correct))


def lengths_tokens(group: Group) -> Int64[np.ndarray, 'G']:
  """Returns the length of each response, its end token included."""
  return np.array([len(r.tokens) for r in group.responses], np.int64)
