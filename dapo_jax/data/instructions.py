r"""Published prompts without the instruction that stands around the problem.

Host only. Which form of answer is asked for is the template's to say: kept in
the data, an instruction would be asked twice, or against the template. What
is taken off is told by what it asks for, a line `Answer:`, a box or `####`.
"""

import re
from collections.abc import Sequence

from dapo_jax.data import records

# DAPO's: the first paragraph asks for the line, the last reminds of it.
_FIRST_PARAGRAPH = re.compile(r'\A[^\n]*Answer: \$Answer[^\n]*\n\n')
_LAST_PARAGRAPH = re.compile(r'\n\n[^\n]*"Answer:"[^\n]*\s*\Z')
# verl's, the last sentence of a problem.
_LAST_SENTENCE = re.compile(
  r"\s+Let's think step by step[^\n]*(?:\\boxed\{\}|####)[^\n]*\s*\Z"
)
_ASKS_FOR_A_FORM = re.compile(r'\\boxed|\banswer:', re.IGNORECASE)


def without(messages: Sequence[records.Message]) -> list[records.Message]:
  """Returns a published conversation without its instructions.

  A system message that asks for a form of answer is left out; of the other
  messages, only what `text` takes off.
  """
  return [
    m._replace(content=text(m.content))
    for m in messages
    if m.role != 'system' or not _ASKS_FOR_A_FORM.search(m.content)
  ]


def text(prompt: str) -> str:
  """Returns a published prompt's problem alone.

  DAPO's two paragraphs are taken off only together: a problem may well have
  one that reads so.
  """
  first = _FIRST_PARAGRAPH.search(prompt)
  last = _LAST_PARAGRAPH.search(prompt)
  if first and last and first.end() <= last.start():
    prompt = prompt[first.end() : last.start()]
  return _LAST_SENTENCE.sub('', prompt)
