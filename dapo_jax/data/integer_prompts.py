r"""What a language model is asked for, so that answers become integers.

Host only. DAPO's appendix A has one prompt in four steps: the form of the
answer, the rewritten problem, its solution, the integer. So has ours; words
and examples are our own, and the parts of a reply stand in tags, so that it is
read by a pattern or not at all.
"""

import re
from typing import NamedTuple

_PARTS = ('format', 'problem', 'solution', 'integer')
_INTEGER = r'-?(?:0|[1-9][0-9]{0,14})'
_REPLY = re.compile(
  r'\s*<format>(.+?)</format>\s*<problem>(.+?)</problem>'
  r'\s*<solution>(.+?)</solution>'
  rf'\s*<integer>\s*({_INTEGER})\s*</integer>\s*',
  re.DOTALL,
)
_DECLINED = re.compile(r'\s*<refuse>.*?</refuse>\s*', re.DOTALL)
_ORDER = tuple(f'<{slash}{part}>' for part in _PARTS for slash in ('', '/'))
_TAG = re.compile(rf'</?(?:{"|".join(_PARTS)}|refuse)>')
_VOTE = re.compile(rf'<integer>\s*({_INTEGER})\s*</integer>\s*\Z')
# What a model thought before it replied.
_THOUGHT = re.compile(r'\A.*</think>', re.DOTALL)

_TASK = r"""
You are given a math problem and its right answer. Rewrite the problem so that
its answer is one integer, in four steps:

1. <format>: the form of the given answer, with a letter for every integer in
   it and the conditions under which the letters have one value only. Letters
   stand for positive integers where that is possible, signs belong to the
   form. Fractions are in lowest terms, and no number under a square root is
   divisible by the square of a prime. Use letters that the problem does not.
2. <problem>: the whole problem, changed in nothing but what it asks for: it
   names the form and its conditions and asks for one integer made of the
   letters, by default their sum. It must not tell or hint at the answer, and
   a solver must need neither the original problem nor these instructions.
3. <solution>: the values of the letters, worked out from the given answer.
4. <integer>: the integer, in digits, and nothing else.

Reply with these four blocks in this order and with nothing around them. If
the answer can't become an integer in this way, because it is a name, a choice
from a list, a proof, or has no unique form, reply with one block instead:
<refuse>the reason in a few words</refuse>
"""

_EXAMPLES = r"""
Example 1
Problem: A rectangle has perimeter $12$ and area $7$. How long is its longer
side?
Answer: $3+\sqrt{2}$
<format>$k + m\sqrt{n}$ with positive integers $k$, $m$ and $n$, where $n$ is
not divisible by the square of any prime</format>
<problem>A rectangle has perimeter $12$ and area $7$. The length of its longer
side can be written as $k + m\sqrt{n}$, where $k$, $m$ and $n$ are positive
integers and $n$ is not divisible by the square of any prime. What is
$k + m + n$?</problem>
<solution>$3 + \sqrt{2} = 3 + 1 \cdot \sqrt{2}$, so $k = 3$, $m = 1$ and
$n = 2$. $3 + 1 + 2 = 6$.</solution>
<integer>6</integer>

Example 2
Problem: Solve $x^2 - 3x < 10$. Write the solutions as an interval.
Answer: $(-2, 5)$
<format>the open interval $(a, b)$ with integers $a < b$</format>
<problem>The real solutions of $x^2 - 3x < 10$ form an open interval $(a, b)$
with integers $a < b$. What is $a + 2b$?</problem>
<solution>The interval is $(-2, 5)$, so $a = -2$ and $b = 5$.
$-2 + 2 \cdot 5 = 8$.</solution>
<integer>8</integer>

Example 3
Problem: Find all real numbers $x$ with $2x^2 + 4 = 9x$.
Answer: $\frac12, 4$
<format>an integer $k$ and a smaller number $\frac{m}{n}$ with relatively prime
positive integers $m$ and $n$</format>
<problem>The larger of the two real solutions of $2x^2 + 4 = 9x$ is an integer
$k$, the smaller one is $\frac{m}{n}$, where $m$ and $n$ are relatively prime
positive integers. What is $k + m + n$?</problem>
<solution>The larger solution is $4$, so $k = 4$; the smaller one is $\frac12$,
so $m = 1$ and $n = 2$. $4 + 1 + 2 = 7$.</solution>
<integer>7</integer>

Example 4
Problem: Is the function $f(x) = x^3 \cos x$ even, odd or neither?
Answer: odd
<refuse>the answer is a word, which has no integer in it</refuse>
"""

_SOLVE = """
Solve the math problem below step by step. Its answer is an integer. End your
reply with that integer in a tag, such as <integer>12</integer>.
"""


class Proposal(NamedTuple):
  """What a model made of a problem."""

  form: str
  statement: str
  integer: int


def rewriting(statement: str, answer: str) -> str:
  """Returns the prompt that asks for the four steps."""
  task, examples = _TASK.strip(), _EXAMPLES.strip()
  return (
    f'{task}\n\n{examples}\n\nNow this one\nProblem: {statement.strip()}\n'
    f'Answer: {answer.strip()}\n'
  )


def solving(statement: str) -> str:
  """Returns the prompt that asks for an integer answer."""
  return f'{_SOLVE.strip()}\n\nProblem: {statement.strip()}\n'


def proposal(reply: str) -> Proposal | str:
  """Returns what a model proposes, or the reason why that is nothing.

  The reply must be the four blocks, in their order, with nothing around them
  but what precedes `</think>`.

  Returns:
    A proposal, 'declined' or 'reply_form', see `refusals.REASONS`.
  """
  reply = _THOUGHT.sub('', reply)
  if _DECLINED.fullmatch(reply):
    return 'declined'
  # Each tag once: of tags without end the pattern would try every choice.
  if tuple(_TAG.findall(reply)) != _ORDER or not _is_unicode(reply):
    return 'reply_form'
  match = _REPLY.fullmatch(reply)
  if match is None:
    return 'reply_form'
  form, statement, solution, integer = (part.strip() for part in match.groups())
  if not (form and statement and solution):
    return 'reply_form'
  return Proposal(form, statement, int(integer))


def vote(reply: str) -> int | None:
  """Returns the integer that a solution ends with, None if there is none."""
  match = _VOTE.search(_THOUGHT.sub('', reply))
  return int(match[1]) if match else None


def _is_unicode(text: str) -> bool:
  """Says whether a text can be written: JSON may hold half a character."""
  try:
    text.encode('utf-8')
  except UnicodeEncodeError:
    return False
  return True
