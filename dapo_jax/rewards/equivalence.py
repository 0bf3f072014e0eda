r"""The robust verdict on an answer: right if it means what the gold one means.

A response's answer is found (`final_answer`), both are brought into one
spelling (`answer_text`), read as what they are (`form_reader`) and compared
part by part (`form_equality`) by exact arithmetic, never with a tolerance.
`quick` does what plain Python can. What it leaves undecided ($\sqrt{8}$ beside
$2\sqrt{2}$, say) is for `symbolic`, which needs SymPy and, where a response is
not to be trusted with time and memory, a worker process.

The conventions (percent signs, units, left-out variables) are in
`docs/rewards.md`.

Host only.
"""

import re

from dapo_jax.data import braces
from dapo_jax.rewards import (
  answer_text,
  answers,
  exact_value,
  final_answer,
  form_equality,
  form_reader,
  latex_parser,
  latex_tree,
  options,
  symbolic_equality,
  verdicts,
)

_INTEGER = re.compile(r'([-+]?)0*(\d+)', re.ASCII)
_SAYS_SOMETHING = re.compile(r'[^\W_]|[∞∅]')
# Behind a comma it tells a list, 120, 135, from a number, but not two texts.
_SPACED = re.compile(r'\d,\s+\S')
_COMMA = re.compile(r'\s*,\s*')


def grade(*, response: str, gold: str) -> verdicts.Verdict:
  """Returns the verdict on a response, given the gold answer; never raises.

  It decides in this process, without a limit on time but those of the guards:
  for responses of a model that is trained, let a worker process call
  `symbolic` where `quick` returns None.

  Args:
    response: the response, decoded; not the prompt.
    gold: the right answer. One that says nothing, or is no answer, never pays.
  """
  extracted = final_answer.find(response)
  correct = quick(extracted, gold)
  if correct is None:
    correct = symbolic(extracted, gold)
  return verdicts.of(correct, extracted)


def quick(answer: str, gold: str) -> bool | None:
  """Returns whether an answer is right, None where that takes algebra.

  Args:
    answer: the answer as `final_answer.find` returns it.
    gold: the right answer.
  """
  if answers.NO_ANSWER in (answer, gold):
    return False
  integers = _INTEGER.fullmatch(answer), _INTEGER.fullmatch(gold)
  if all(integers):
    return _signed(integers[0]) == _signed(integers[1])
  return _compared(answer, gold, _QUICK)


def symbolic(answer: str, gold: str) -> bool:
  """Returns whether an answer is right, by algebra where that is needed.

  It may take long, and SymPy's import takes a second: call it in a worker
  process with limits, which imports it by its name.

  Args:
    answer: the answer as `final_answer.find` returns it.
    gold: the right answer.
  """
  if answers.NO_ANSWER in (answer, gold):
    return False
  return bool(_compared(answer, gold, _SYMBOLIC))


def _signed(integer: re.Match) -> str:
  """An integer's digits, for those of thousands are no Python integer."""
  negative = integer[1] == '-' and integer[2] != '0'
  return '-' * negative + integer[2]


def _compared(
  answer: str, gold: str, oracle: form_equality.Oracle
) -> bool | None:
  # 100,200 is a list where the gold answer is one, 100, 200.
  is_list = _SPACED.search(gold) and not _SPACED.search(answer)
  texts = [
    answer_text.normalize(answer, thousands=not is_list),
    answer_text.normalize(gold),
  ]
  if not all(_SAYS_SOMETHING.search(text) for text in texts):
    return False
  if not braces.all_closed(texts[1]):
    return False  # a gold that is cut off is no answer
  letter, chosen = options.letter(texts[1]), options.chosen(texts[0])
  if letter and chosen:
    return letter == chosen
  if len({_COMMA.sub(',', text.strip()) for text in (answer, gold)}) == 1:
    return True
  texts[0] = options.without_letter(*texts)
  forms = [form_reader.read(text) for text in texts]
  return form_equality.same(*forms, oracle)


def _quickly_equal(answer: str, gold: str) -> bool | None:
  decimals = exact_value.decimal(answer), exact_value.decimal(gold)
  if None not in decimals:
    return decimals[0] == decimals[1]
  trees = [
    latex_parser.parse(text) if value is None else latex_tree.number(value)
    for text, value in zip((answer, gold), decimals, strict=True)
  ]
  if all(trees):
    if trees[0] == trees[1]:
      return True
    values = [exact_value.rational(tree) for tree in trees]
    return None if None in values else values[0] == values[1]
  # What no one reads is equal to its own spelling only.
  return None if symbolic_equality.can_read(answer, gold) else False


def _perhaps_proportional(
  answer: str, gold: str, positive: bool
) -> bool | None:
  del answer, gold, positive
  return None


_QUICK = form_equality.Oracle(_quickly_equal, _perhaps_proportional)


def _exactly_equal(answer: str, gold: str) -> bool:
  verdict = _quickly_equal(answer, gold)
  if verdict is None:
    verdict = symbolic_equality.equal(answer, gold)
  return verdict


_SYMBOLIC = form_equality.Oracle(_exactly_equal, symbolic_equality.proportional)
