"""Whether two numbers with units, or a percent sign, are one quantity.

Host only.
"""

from collections.abc import Callable

from dapo_jax.rewards import (
  answer_form,
  exact_value,
  latex_parser,
  three_valued,
  units,
)

Form = answer_form.Form
Alike = Callable[[Form, Form], bool | None]


def compare(answer: Form, gold: Form, alike: Alike) -> three_valued.Attempt:
  """Returns whether two forms are one quantity.

  `NotImplemented` where neither has a unit, or one is no number. `alike` says
  whether the numbers are the same, once they are in one unit.
  """
  kinds = (answer.kind, gold.kind)
  if 'quantity' not in kinds or not {'list', 'set', 'words'}.isdisjoint(kinds):
    return NotImplemented
  unit, gold_unit = (
    form.detail if form.kind == 'quantity' else '' for form in (answer, gold)
  )
  core, gold_core = (
    form.parts[0] if form.kind == 'quantity' else form
    for form in (answer, gold)
  )
  if '%' in (unit, gold_unit) and unit != gold_unit:
    return not (unit and gold_unit) and _percent(core, gold_core, unit, alike)
  angles = [_angle(unit, core), _angle(gold_unit, gold_core)]
  if set(angles) == {'degrees', 'radians'}:
    core, gold_core = (
      _times(form, '\\pi/180') if angle == 'degrees' else form
      for form, angle in zip((core, gold_core), angles, strict=True)
    )
    return alike(core, gold_core)
  ratio = units.ratio(unit, gold_unit)
  if ratio is None:
    return False
  if ratio != 1:
    if core.kind != 'formula':
      return False
    core = _times(core, f'({ratio})')
  return alike(core, gold_core)


def _angle(unit: str, core: Form) -> str:
  """What an angle is in: a bare multiple of pi is in radians."""
  if unit and units.ratio(unit, '°') == 1:
    return 'degrees'
  if unit and units.ratio(unit, 'radian') == 1:
    return 'radians'
  return 'radians' if not unit and '\\pi' in core.text else ''


def _percent(core: Form, gold: Form, unit: str, alike: Alike) -> bool | None:
  """One side has a percent sign: the other is a share, or left it out."""
  if core.kind != 'formula' or gold.kind != 'formula':
    return False
  share = (
    (_times(core, '1/100'), gold) if unit else (core, _times(gold, '1/100'))
  )
  verdict = alike(*share)
  tree = latex_parser.parse((core if unit else gold).text)
  value = tree and exact_value.rational(tree)
  # 0.5 without the sign is a half, not half a percent.
  if verdict or value is None or abs(value) < 1:
    return verdict
  return alike(core, gold)


def _times(form: Form, factor: str) -> Form:
  return Form('formula', f'({form.text})*{factor}')
