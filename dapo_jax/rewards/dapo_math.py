"""The verdict on an answer by DAPO's rule: equal text after normalisation.

It gives, character for character, the verdicts of the scorer behind the
paper's published results (`math_dapo` in verl), its quirks included: `34.` is
wrong where 34 is right, and `1,2` equals 12. Two things differ. A gold answer
that says nothing never pays, where the original pays `$$1$$` for `$$2$$` (both
normalise to nothing), or any response without an answer when the gold is
`[INVALID]`. And the time is linear in the text, where the original's is
quadratic.

Host only.
"""

import re

from dapo_jax.rewards import answers, verdicts

# Replaced in this order, then the expressions below deleted in theirs.
_REPLACED = (
  ('an ', ''),
  ('a ', ''),
  ('.$', '$'),
  ('\\$', ''),
  ('\\ ', ''),
  (' ', ''),
  ('mbox', 'text'),
  (',\\text{and}', ','),
  ('\\text{and}', ','),
  ('\\text{m}', '\\text{}'),
)
_DELETED = (
  *('square', 'ways', 'integers', 'dollars', 'mph', 'inches', 'hours', 'km'),
  *('units', '\\ldots', 'sue', 'points', 'feet', 'minutes', 'digits', 'cents'),
  *('degrees', 'cm', 'gm', 'pounds', 'meters', 'meals', 'edges', 'students'),
  *('childrentickets', 'multiples', '\\text{s}', '\\text{.}', '\\text{\ns}'),
  *('\\text{}^2', '\\text{}^3', '\\text{\n}', '\\text{}', '\\mathrm{th}'),
  *('^\\circ', '^{\\circ}', '\\;', ',\\!', '{,}', '"', '\\dots'),
)
# Commands whose argument stands for itself.
_UNWRAPPED = tuple(
  re.compile(r'\\' + command + r'\{(.*?)\}')
  for command in ('text', 'textbf', 'overline')
)
# Where the strict form looks for a box.
_STRICT_CHARACTERS = 100
_BOX = '\\boxed{'
# \frac12 and \sqrt2.
_SHORT_FRACTION = re.compile(r'frac([^{])(.)')
_SHORT_ROOT = re.compile(r'sqrt([^{])')


def score(
  response: str, gold: str, *, strict_box: bool = False
) -> verdicts.Verdict:
  r"""Returns the verdict on a response, given the gold answer (DAPO eq. 7).

  It is right if the text after its last `Answer:` and the gold are equal once
  both are normalised.

  Args:
    response: the response, decoded; not the prompt.
    gold: the right answer.
    strict_box: read the last `\boxed{...}` in the last 100 characters instead,
      and let it be right only if it is the gold, character for character. The
      published runs did not use it.
  """
  if strict_box:
    return _strictly(response, gold)
  extracted = normalize(answers.last_answer(response))
  expected = normalize(gold)
  says_something = expected not in ('', answers.NO_ANSWER)
  correct = says_something and extracted == expected
  return verdicts.of(correct, extracted)


def _strictly(response: str, gold: str) -> verdicts.Verdict:
  """The verdict on the last box; a box that is cut off is none."""
  tail = response[-_STRICT_CHARACTERS:]
  start = tail.rfind(_BOX)
  depth, extracted = 1, answers.NO_ANSWER
  for at in range(start + len(_BOX), len(tail) if start >= 0 else 0):
    # An escaped brace counts like any other.
    depth += {'{': 1, '}': -1}.get(tail[at], 0)
    if not depth:
      extracted = tail[start + len(_BOX) : at]
      break
  correct = gold not in ('', answers.NO_ANSWER) and extracted == gold
  return verdicts.of(correct, extracted)


def normalize(answer: str) -> str:
  """Returns an answer without words, units and dressing, in linear time."""
  answer = answer.rpartition('=')[2]
  for old, new in _REPLACED:
    answer = answer.replace(old, new)
  for expression in _DELETED:
    answer = answer.replace(expression, '')
  answer = '\n'.join(_undressed(line) for line in answer.split('\n'))
  answer = _SHORT_FRACTION.sub(r'frac{\1}{\2}', answer)
  answer = _SHORT_ROOT.sub(r'sqrt{\1}', answer)
  answer = answer.replace('$', '')
  digits = answer.replace(',', '')
  return (digits if digits.isdigit() else answer).strip()


def _undressed(line: str) -> str:
  """A line's formula, if it has one, without the commands around it."""
  parts = line.split('$', 2)
  if len(parts) == 3:
    line = f'${parts[1]}$'
  for command in _UNWRAPPED:
    # Before the last brace every command is closed, so that the pattern never
    # looks for a brace in vain: this keeps the time linear.
    end = line.rfind('}') + 1
    line = command.sub(r'\1', line[:end]) + line[end:]
  start, end = line.find(_BOX), line.rfind('}')
  if 0 <= start < end:
    line = line[:start] + line[start + len(_BOX) : end] + line[end + 1 :]
  return line
