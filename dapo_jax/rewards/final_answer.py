r"""The text of the answer that a response ends on.

An answer is marked by a box (`\boxed{...}` or `\fbox{...}`), by a line
`Answer: ...`, by GSM8K's `#### ...` or by `<answer>...</answer>`; the mark that
begins last counts. What stands before the last `</think>` is not read. A box
or a line that is empty or cut off is no answer, and an earlier one does not
stand in for it. Only a response without any mark is searched for `answer is`.

Host only.
"""

import re

from dapo_jax.data import braces
from dapo_jax.rewards import answers

# What a tokenizer may leave at the end.
_STOP_TOKENS = re.compile(
  r'(?:\s|<\|[\w ]{1,32}\|>|</?s>|<eos>|<pad>|<end_of_turn>)+\Z'
)
_BOX_WORD = re.compile(r'\\(?:boxed|fbox)(?![A-Za-z])')
_BOX = re.compile(r'\\(?:boxed|fbox)\s*\{')
# TeX lets a box without braces hold what follows; here that is a number, so
# that the word in a sentence is none.
_BARE_BOX = re.compile(r'\\(?:boxed|fbox)\s*(-?\d[\d,]*(?:\.\d+)?)')
_LABEL = r'answer(?:\s+is)?[*_ \t]*[:\uff1a]'
_LINE = re.compile(rf'{_LABEL}[*_\s]*((?:(?!{_LABEL})[^\n])*)', re.IGNORECASE)
# A heading, the answer below it.
_HEADING = re.compile(
  r'^[ \t]*[#*_]+[ \t]*(?:final[ \t]+)?answer[ \t*_]*\n\s*([^\n]+)',
  re.IGNORECASE | re.MULTILINE,
)
# Only a number, for `#### Step 2` is a heading.
_HASHES = re.compile(
  r'^[ \t]*####[ \t]*([-+$\u20ac\xa3\u2212]{0,3}[\d.,/]{1,200}[ ]?%?)[ \t.]*$',
  re.MULTILINE,
)
_TAG = re.compile(r'<answer>([^<]*(?:<(?!/?answer>)[^<]*)*)</answer>', re.I)
_SENTENCE = re.compile(r'\banswer\s+(?:is|equals)\s+([^\n]*)', re.IGNORECASE)
# `The value of x is 17`: words, then a verb, none of them a denial.
_OPENING = re.compile(
  r"(?!.*\b(?:not|never|no|cannot)\b|.*n't\b)"
  r'[A-Za-z][\w ,$\\()]{0,80}?\b(?:is|are|equals)\b:?\s+(?=\S)',
  re.IGNORECASE,
)
# Where the sentence with the answer ends.
_NEXT_SENTENCE = re.compile(r'(?<=[\w$)}*%])\.\s+(?=[A-Z])')
_AFTERTHOUGHT = re.compile(r',\s+(?!and\b|or\b)[A-Za-z]{2}')
_DRESSING = ' \t\r\n*_`"'
# A box within a box is looked for so often, which keeps the time linear.
_NESTED_BOXES = 3


def find(response: str, *, only_box: bool = False) -> str:
  """Returns the answer's text, or `answers.NO_ANSWER`, in linear time.

  Args:
    response: the response, decoded; not the prompt.
    only_box: whether a box is the one mark that counts (DCPO).
  """
  text = response.rpartition('</think>')[2]
  text = _STOP_TOKENS.sub('', text[-200:]).join((text[:-200], ''))
  marked = _box(text)
  if not only_box:
    marked = max(marked, _line(text), _others(text))
    if marked[0] < 0:
      marked = (0, _sentence(text))
  return marked[1].strip() or answers.NO_ANSWER


def _box(text: str) -> tuple[int, str]:
  """Where the last box begins (-1 = nowhere), and what is in it."""
  starts = [found.start() for found in _BOX_WORD.finditer(text)]
  while starts:
    start = starts.pop()
    bare = _BARE_BOX.match(text, start)
    if bare:
      return start, bare[1]
    # The word alone is no box.
    if _BOX.match(text, start):
      return _outermost(text, start, starts)
  return -1, ''


def _outermost(text: str, start: int, earlier: list[int]) -> tuple[int, str]:
  """The box at `start`, or the one around it."""
  end, content = _closed(text, start)
  found = (start, content)
  for start in reversed(earlier[-_NESTED_BOXES:] if end else ()):
    outer_end, content = _closed(text, start)
    if outer_end < end:
      break
    found, end = (start, content), outer_end
  return found


def _closed(text: str, start: int) -> tuple[int, str]:
  """Where the box at `start` ends (0 = nowhere), and what is in it."""
  opened = _BOX.match(text, start)
  if not opened:
    return 0, ''
  end = braces.closing(text, opened.end())
  return (end + 1, text[opened.end() : end]) if end >= 0 else (0, '')


def _line(text: str) -> tuple[int, str]:
  """Where the last `Answer:` or heading is (-1 = nowhere), and its answer."""
  last = (-1, '')
  for pattern in (_LINE, _HEADING):
    for found in pattern.finditer(text):
      last = max(last, (found.start(), found[1]))
  return last[0], _claim(last[1])


def _others(text: str) -> tuple[int, str]:
  """Where the last of the other marks is (-1 = nowhere), and its answer."""
  last = (-1, '')
  if '####' in text or '</answer>' in text.lower():
    for pattern in (_HASHES, _TAG):
      for found in pattern.finditer(text):
        last = max(last, (found.start(), found[1]))
  return last


def _sentence(text: str) -> str:
  """What a sentence without a mark calls the answer."""
  found = _SENTENCE.findall(text)
  return _AFTERTHOUGHT.split(_claim(found[-1]), 1)[0] if found else ''


def _claim(line: str) -> str:
  """A line's answer, without markdown and the sentence around it."""
  line = _bare(line)
  opening = _OPENING.match(line)
  if opening:
    line = line[opening.end() :]
  head, *rest = _NEXT_SENTENCE.split(line, 1)
  # `17. Or 18.` has no answer.
  explained = rest and not re.search(r'\d|[Oo]r\b|[Nn]ot?\b', rest[0])
  if explained and (re.search(r'\d', head) or len(head.strip('()$ ')) == 1):
    line = head
  return _bare(line)


def _bare(line: str) -> str:
  r"""A line without markdown, and the full stop behind it.

  The label may have been in a command, \textbf{Answer:} 5, whose brace is
  closed behind it.
  """
  if line.count('}') > line.count('{'):
    start, _, end = line.rpartition('}')
    line = line[1:] if line.startswith('}') else start + end
  line = re.sub(r'\\\\\s*$', '', line)
  line = line.strip(_DRESSING)
  # `**5**.`; not by a search, whose time would be quadratic.
  undotted = line.removesuffix('.')
  if undotted.endswith(tuple('*_`"')):
    line = undotted
  return line.strip(_DRESSING)
