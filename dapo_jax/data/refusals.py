"""Why an answer can't be turned into an integer, in a word.

Host only.
"""

# What a row is refused for, and what that means.
REASONS = {
  # By the rule, or by both.
  'ambiguous': 'it can be read in two ways, such as 1/2x or x^10',
  'coefficients': 'a polynomial whose coefficients are not all integers',
  'decimal': 'a decimal where the statement asks for one, or for rounding',
  'equation': 'an equation, an inequality or a ratio',
  'factored': 'a product of polynomials: multiplied out it is another problem',
  'function': 'a function of something: a logarithm, a sine, a factorial',
  'interval': 'an interval or a union, or a pair that might be one',
  'matrix': 'a matrix or a column vector',
  'no_question': "the conversation does not end with the user's question",
  'power': 'an exponent that is not an integer from -64 to 64',
  'root': 'a root that is not the square root of a fraction',
  'several': 'several answers, or a set',
  'symbol': 'a letter that stands for nothing known, or alone',
  'terms': 'more than three terms, or a sum with pi in the denominator',
  'text': 'words: a name, a choice, a yes',
  'too_large': 'too long, or with numbers of too many digits',
  'tuple': 'a tuple whose entries are not all integers',
  'unit': 'a unit other than degrees, dollars and percent, or with letters',
  'unreadable': 'none of the notations that are read',
  'variables': 'several variables, or one in a denominator',
  # By what a language model said.
  'declined': 'the model saw no way',
  'disagrees_with_majority': 'most solutions have another integer',
  'disagrees_with_rule': "the rule's integer is another",
  'endpoint_failed': 'the endpoint did not answer',
  'gives_away': 'the rewritten statement holds the original answer',
  'no_majority': 'no integer has more than half of the solutions',
  'not_rewritten': 'the rewritten statement is the original',
  'reply_form': 'the reply did not have the form asked for',
}


class Refusal(Exception):
  """Says that an answer is refused.

  Attributes:
    reason: a key of `REASONS`.
  """

  def __init__(self, reason: str):
    assert reason in REASONS, reason
    super().__init__(f'{reason}: {REASONS[reason]}')
    self.reason = reason
