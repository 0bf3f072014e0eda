r"""LaTeX for the Unicode characters that mathematics is written with.

`x²` becomes `x^{2}`, `½` `\frac{1}{2}`, `√` `\sqrt`, `π` `\pi`, a full-width
digit an ASCII one. A few signs that have no ASCII form stay, in one spelling:
`≤ ≥ ≠ ≈ ∈ ∪ ∩ ± ∓ ∞ ∅ °`. Control and direction characters are dropped.

Host only.
"""

import re
import unicodedata

_GREEK = dict(
  zip(
    'αβγδεζηθικλμνξπρστυφχψωϕϵΓΔΘΛΞΠΣΦΨΩ',
    'alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi '
    'pi rho sigma tau upsilon phi chi psi omega phi epsilon Gamma Delta Theta '
    'Lambda Xi Pi Sigma Phi Psi Omega'.split(),
    strict=True,
  )
)
_KEPT = '≤≥≠≈∈∪∩±∓∞∅°⟨⟩⌊⌋⌈⌉'
_REPLACED = {
  **{letter: f'\\{name} ' for letter, name in _GREEK.items()},
  **{sign: sign for sign in _KEPT},
  **dict.fromkeys('−–—‐‑‒', '-'),
  **dict.fromkeys('×∗⋅·∙•', '*'),
  **dict.fromkeys('÷∕⁄', '/'),
  **dict.fromkeys('、､', ','),
  **dict.fromkeys('。｡', '.'),
  **dict.fromkeys('º˚', '°'),
  **dict.fromkeys('⩽≦', '≤'),
  **dict.fromkeys('⩾≧', '≥'),
  **dict.fromkeys('≅≃', '≈'),
  **dict.fromkeys('′’‘', "'"),
  **dict.fromkeys('“”', '"'),
  **dict.fromkeys('〈《', '⟨'),
  **dict.fromkeys('〉》', '⟩'),
  '⌀': '∅',
  '√': '\\sqrt ',
  '∛': '\\sqrt[3]',
  'ℝ': '\\R ',
  '∖': '\\setminus ',
  '￥': '¥',
}
# Raised and lowered characters, a run at a time.
_RAISED = '⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ'
_LOWERED = '₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙ'
_RUN = re.compile(f'([{_RAISED}]+)|([{_LOWERED}]+)')
# Controls, directions, zero-width spaces, lone surrogates, what is no one's.
_DROPPED = {'Cc', 'Cf', 'Cs', 'Co', 'Cn'}


def to_latex(text: str) -> str:
  """Returns the text in ASCII and the signs that are kept."""
  if text.isascii() and text.isprintable():
    return text
  text = _RUN.sub(_script, text)
  return ''.join(_character(character) for character in text)


def _script(run: re.Match) -> str:
  """A raised run as a power, a lowered one as a subscript."""
  plain = unicodedata.normalize('NFKC', run[0]).replace('−', '-')
  return f'^{{{plain}}}' if run[1] else f'_{{{plain}}}'


def _character(character: str) -> str:
  if character in _REPLACED:
    return _REPLACED[character]
  if character.isdecimal():
    # Digits of other scripts, too.
    return str(unicodedata.decimal(character))
  if character.isspace():
    return ' '
  if unicodedata.category(character) in _DROPPED:
    return ''
  if unicodedata.decomposition(character).startswith('<fraction>'):
    above, _, below = unicodedata.normalize('NFKC', character).partition('⁄')
    return f'\\frac{{{above}}}{{{below}}}'
  return unicodedata.normalize('NFKC', character)
