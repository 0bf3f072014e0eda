r"""One spelling for the many ways in which an answer can be written.

A response's answer and the gold one go through the same `normalize`. It takes
away what says nothing (dollar signs, `\left`, spaces, fonts, boxes, a full
stop) and gives one spelling to what has several: relations and set signs are
one Unicode character each, `\dfrac` is `\frac`, `1,234` and `1{,}234` are
`1234`. Words stay in `\text{...}`; an `and` between answers is `∧`, an `or`
is `∨`.

Host only.
"""

import re

from dapo_jax.rewards import unicode_math

# Of a longer answer only the integers are told apart.
LONGEST_CHARACTERS = 10_000

# A sign, then the commands for it.
_COMMANDS = {
  '≤': 'le leq leqslant leqq',
  '≥': 'ge geq geqslant geqq',
  '≠': 'ne neq',
  '≈': 'approx approxeq simeq cong',
  '*': 'cdot times ast',
  '|': 'vert lvert rvert mid',
  '∅': 'emptyset varnothing',
  '...': 'dots ldots cdots dotsc',
  '\\frac': 'dfrac tfrac cfrac',
  '\\binom': 'dbinom tbinom',
  '\\overline': 'bar widebar',
  '\\setminus': 'smallsetminus backslash',
  '°': 'degree textdegree',
  # Sizes, spaces and styles, which say nothing.
  ' ': 'left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr '
  'Biggl Biggr limits nolimits displaystyle textstyle scriptstyle rm bf it sf '
  'tt quad qquad thinspace medspace thickspace enspace negthinspace hfill null '
  'relax nonumber',
}
_SIGNS = {
  **{
    f'\\{n}': sign for sign, names in _COMMANDS.items() for n in names.split()
  },
  '\\div': '/',
  '\\lt': '<',
  '\\gt': '>',
  '\\in': '∈',
  '\\cup': '∪',
  '\\cap': '∩',
  '\\pm': '±',
  '\\mp': '∓',
  '\\infty': '∞',
  '\\langle': '⟨',
  '\\rangle': '⟩',
  '\\lfloor': '⌊',
  '\\rfloor': '⌋',
  '\\lceil': '⌈',
  '\\rceil': '⌉',
  '\\lbrace': '\\{',
  '\\rbrace': '\\}',
  '\\lbrack': '[',
  '\\rbrack': ']',
  '\\colon': ':',
  '\\lor': '∨',
  '\\land': '∧',
  '\\percent': '%',
  '\\euro': '€',
  '\\pounds': '£',
  '\\textdollar': '\\$',
  '\\tg': '\\tan',
  '\\ctg': '\\cot',
  '\\prime': "'",
  '\\varphi': '\\phi',
  '\\varepsilon': '\\epsilon',
}
_COMMAND = re.compile(r'\\[A-Za-z]+')
_OPERATORS = {
  **{'<=': '≤', '=<': '≤', '>=': '≥', '!=': '≠', '==': '=', '+/-': '±'},
  **{'+-': '±', '**': '^', '`': "'", '\\{\\}': '∅', '{}': '', '{:}': ':'},
  'US\\$': '\\$',
}
_DELIMITERS = re.compile(r'(?<!\\)\\[()\[\]]|(?<!\\)\$|\\(?:left|right)\s*\.')
# One dollar sign is money, two are delimiters.
_MONEY = re.compile(r'(?<!\\)\$(?=\s*[\d.])')
_SPACES = re.compile(
  r'(?:(?<!\\)\\[,;:>! ]|~|\\(?:hspace|tag|(?:text)?color)\*?\{[^{}]*\}|\s)+'
)
_DEGREES = re.compile(
  r'\^\s*(?:\{\s*(?:\\circ|\\degree|°)\s*\}|\\circ(?![A-Za-z])|°)'
  r'|(?<=\d)\s*\\circ(?![A-Za-z])'
)
# TeX's ways to part thousands; the digits after them come by threes.
_TEX_THOUSANDS = re.compile(
  r'(?<=\d)(?:\{,\}|,\s*\\!|\\!,|,\\,|\\[,;! ]|~)\s*(?=\d{3}(?!\d))'
)
_THOUSANDS = re.compile(
  r'(?<![\d.,])(?<!\d )[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)(?:\.\d+)?'
)
_SPACED_THOUSANDS = re.compile(
  r'(?<![\w.,/}])(?<![\w.,/}] )[1-9]\d{0,2}(?: \d{3})+(?![\d ]*/)(?![\d,])'
)
_FONT = re.compile(
  r'\\(?:math(?:rm|bf|it|sf|tt|cal|normal|bb|bfit)|boldsymbol|bm'
  r'|operatorname\*?|emph)\s*(?:\{([^{}]*)\}|([A-Z])(?![A-Za-z]))'
)
_UPRIGHT_UNIT = r'[mgsLhJNKW]|[A-Za-z]+/[A-Za-z]+'
_BOX = re.compile(r'\\(?:boxed|fbox|ensuremath|underline)\s*(?=\{)')
_TEXT = re.compile(
  r'\\(?:text(?:bf|it|rm|sf|tt|sc|up|normal|md)?|mbox|hbox)\s*'
  r'\{\s*(?:\\text\{([^{}]*)\}|([^{}]*))\s*\}'
)
_KEPT_TEXT = re.compile(r'\\text\{([^{}]*)\}')
_JOINER = re.compile(r',?\s*(?<![A-Za-z\\])(and|or)(?![A-Za-z])\s*', re.I)
_OPTION = re.compile(r'[A-J]\.')
_JOINED = {'and': '∧', 'or': '∨'}
_NAMED_FUNCTIONS = (
  *('sin', 'cos', 'tan', 'cot', 'sec', 'csc', 'ln', 'log', 'exp', 'gcd'),
  *('lcm', 'max', 'min', 'arcsin', 'arccos', 'arctan', 'sinh', 'cosh', 'tanh'),
)
# A space says something only between letters or digits.
_GAP = re.compile(r' (?![A-Za-z0-9])|(?<![A-Za-z0-9]) ')


def normalize(text: str, *, thousands: bool = True) -> str:
  """Returns an answer in the one spelling; '' when it says nothing.

  Args:
    text: the answer.
    thousands: whether a comma may part thousands.
  """
  text = text.strip()
  if len(text) > LONGEST_CHARACTERS or (text.isascii() and text.isdigit()):
    return text
  text = unicode_math.to_latex(text).strip(' *"')
  if text.count('$') - text.count('\\$') == 1:
    text = _MONEY.sub(r'\\$', text)
  text = _with_numbers(_DELIMITERS.sub(' ', text), thousands)
  text = _COMMAND.sub(lambda c: _SIGNS.get(c[0], c[0]), _DEGREES.sub('°', text))
  text = _with_words(_SPACES.sub(' ', text.replace('\\%', '%')))
  for old, new in _OPERATORS.items():
    text = text.replace(old, new)
  return _trimmed(_GAP.sub('', _SPACES.sub(' ', text)))


def without_commands(text: str) -> str:
  r"""Returns an answer in the one spelling with its words outside `\text`."""
  return _KEPT_TEXT.sub(r'\1', text)


def _with_numbers(text: str, thousands: bool) -> str:
  """Takes the separators out of numbers, not the commas out of lists."""
  text = _TEX_THOUSANDS.sub('', text)
  spaced_list = ', ' in text

  def join(number: re.Match) -> str:
    before = text[: number.start()]
    inside = sum(before.count(b) for b in ('(', '[', '\\{', '⟨')) - sum(
      before.count(b) for b in (')', ']', '\\}', '⟩')
    )
    # (1,200) is a pair, but (1,200, 5) one of 1200 and 5.
    keep = inside > 0 and not spaced_list
    return number[0] if keep else number[0].replace(',', '')

  if thousands:
    text = _THOUSANDS.sub(join, text)
  return _SPACED_THOUSANDS.sub(lambda n: n[0].replace(' ', ''), text)


def _with_words(text: str) -> str:
  r"""Keeps words in `\text`, takes everything else out of it."""
  text = _BOX.sub('', text)
  text = _FONT.sub(_font, text)
  for _ in range(2):
    text = _TEXT.sub(_text, text)
  text = _JOINER.sub(lambda j: _JOINED[j[1].lower()], text)
  return re.sub(r',\s*(?=[∧∨])', '', text)


def _font(command: re.Match) -> str:
  content = (command[1] or command[2] or '').strip()
  if content in _NAMED_FUNCTIONS:
    return f'\\{content} '
  if content == 'R' and 'bb' in command[0]:
    return '\\R '
  # Upright letters behind a number are a unit, \\mathrm{m/s}.
  if 'rm' in command[0] and re.fullmatch(_UPRIGHT_UNIT, content):
    return f'\\text{{{content}}}'
  return (
    f'\\text{{{content}}}' if re.search('[A-Za-z]{2}', content) else content
  )


def _text(command: re.Match) -> str:
  content = (command[1] or command[2] or '').strip()
  *before, joined = _JOINER.split(content)
  if before and not joined:
    # `cm and` between two lengths, or `and` alone.
    *before, joiner = before
    return _words(''.join(before)) + _JOINED[joiner.lower()]
  return _words(content)


def _words(content: str) -> str:
  content = content.strip(' ,')
  if not re.search('[A-Za-z]', content):
    return f' {content} '
  if not _OPTION.fullmatch(content):
    content = content.rstrip('.')
  return f'\\text{{{content}}}'


def _trimmed(text: str) -> str:
  """Takes off the punctuation at the end, and brackets around it all."""
  for _ in range(2):
    if not text.endswith('...'):
      text = text.rstrip(' .,;:\\')
    text = _unwrapped(text.strip(' '))
  return text


def _unwrapped(text: str) -> str:
  """A text without braces, and without doubled parentheses, around it."""
  # Each kind for itself: in {(0,1]} the parenthesis has no partner.
  closing, opened = {}, {'}': [], ')': []}
  for bracket in re.finditer(r'\\.|[{}()]', text):
    if bracket[0] in '{(':
      opened['}' if bracket[0] == '{' else ')'].append(bracket.start())
    elif opened.get(bracket[0]):
      closing[opened[bracket[0]].pop()] = bracket.start()
  start, end = 0, len(text) - 1
  while closing.get(start) == end and (
    text[start] == '{'
    or (text[start : start + 2] == '((' and closing.get(start + 1) == end - 1)
  ):
    start, end = start + 1, end - 1
  return text[start : end + 1]
