"""Draws docs/figures/clip_bounds.png: what a token's probability may become.

    python bench/clip_bounds.py [--out=FILE]

The bounds are those of the package's own functions: PPO's and GRPO's fixed
clip, DAPO's clip-higher and DCPO's dynamic bounds, over the probability that
the token had when it was sampled. Needs matplotlib (the extra `dev`).
"""

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use('Agg')
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib import ticker  # noqa: E402

_ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from dapo_jax.objective import clip  # noqa: E402

# From below where DAC's upper bound meets its cap (q = 0.2 / 90) to 1.
_Q = np.geomspace(5e-4, 1.0, 1201)


class Curve(NamedTuple):
  """A method's bounds over `_Q`, and how they are drawn."""

  label: str
  low: np.ndarray
  high: np.ndarray
  # Of Okabe and Ito's colours, which people tell apart who see red or green
  # alike; the dashes tell them apart without colour.
  color: str
  dashes: str


def curves() -> list[Curve]:
  """Returns the bounds of the three methods."""
  fixed = lambda *eps: [np.full_like(_Q, b) for b in clip.fixed_bounds(*eps)]
  dac = clip.dac_bounds(jnp.log(_Q), eps_low=0.16, eps_high=0.2, ratio_max=10.0)
  return [
    Curve('fixed, 0.2 (PPO, GRPO)', *fixed(0.2, 0.2), '#000000', ':'),
    Curve(
      'clip-higher, 0.2 and 0.28 (DAPO)', *fixed(0.2, 0.28), '#D55E00', '--'
    ),
    Curve(
      'dynamic, 0.16 and 0.2 (DCPO)',
      *(np.asarray(bound) for bound in dac),
      '#0072B2',
      '-',
    ),
  ]


def draw(found: list[Curve], file: pathlib.Path) -> None:
  """Writes the figure: bounds of the ratio, and of the new probability."""
  plt.rcParams.update({'font.size': 11, 'axes.titlesize': 12})
  figure, (left, right) = plt.subplots(
    1, 2, figsize=(11.5, 5.0), layout='constrained'
  )
  _draw_bounds(left, found, lambda ratio: ratio)
  # Beyond 1 there is no probability.
  _draw_bounds(right, found, lambda ratio: np.minimum(ratio * _Q, 1.0))
  _finish_left(left)
  _finish_right(right)
  figure.legend(
    *left.get_legend_handles_labels(),
    loc='outside lower center',
    ncols=3,
    frameon=False,
  )
  file.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(file, dpi=150)
  plt.close(figure)


def _draw_bounds(axes: plt.Axes, found: list[Curve], shown: Callable) -> None:
  """Draws both bounds of each curve, and shades between the last one's."""
  for order, curve in enumerate(found):
    line = dict(color=curve.color, linestyle=curve.dashes, linewidth=2)
    # The dots of the first over the dashes of the second, where they agree.
    line['zorder'] = 3 - 0.1 * order
    axes.plot(_Q, shown(curve.high), label=curve.label, **line)
    axes.plot(_Q, shown(curve.low), **line)
  axes.fill_between(
    _Q,
    shown(curve.low),
    shown(curve.high),
    color=curve.color,
    alpha=0.1,
    linewidth=0,
  )


def _finish_left(axes: plt.Axes) -> None:
  axes.set(
    title='Bounds of the ratio, r = p / q',
    ylabel='ratio r (no unit)',
    xscale='log',
    yscale='log',
    ylim=(0.4, 14),
  )
  axes.set_yticks([0.5, 0.8, 1, 1.28, 2, 5, 10])
  axes.yaxis.set_minor_locator(ticker.NullLocator())
  axes.axhline(1.0, color='0.6', linewidth=0.8)
  # p <= 1 leaves nothing above r = 1 / q.
  axes.fill_between(_Q, 1 / _Q, 20, color='0.88', linewidth=0, zorder=4)
  axes.text(0.36, 5.5, 'p > 1', color='0.35', ha='center', zorder=5)
  note = dict(color='#0072B2', ha='center')
  axes.text(0.00118, 10.7, 'capped at 10', **note)
  axes.text(0.01, 0.435, 'never below 1/2', **note)
  _finish(axes)


def _finish_right(axes: plt.Axes) -> None:
  axes.set(
    title='What the probability may become, p = r q',
    ylabel='probability after the update, p',
    xscale='log',
    yscale='log',
    ylim=(2e-4, 1.4),
  )
  axes.plot(_Q, _Q, color='0.6', linewidth=0.8)
  axes.axvline(0.01, color='0.5', linewidth=0.8, linestyle=(0, (1, 2)))
  for point, place, text, color in (
    ((0.01, 0.05), (0.0025, 0.12), '0.01 to 0.05', '#0072B2'),
    ((0.01, 0.0128), (0.05, 0.0022), '0.01 to 0.0128 or 0.012', '#D55E00'),
  ):
    arrow = dict(arrowstyle='->', color=color, shrinkB=1)
    axes.annotate(
      text, point, place, color=color, ha='center', arrowprops=arrow
    )
  _finish(axes)


def _finish(axes: plt.Axes) -> None:
  axes.set_xlabel('probability when sampled, q')
  axes.set_xlim(_Q[0], 1.0)
  axes.xaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axes.yaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axes.grid(True, which='major', color='0.9', linewidth=0.8)
  axes.set_axisbelow(True)
  axes.spines[['top', 'right']].set_visible(False)


def main() -> None:
  """Draws the figure."""
  parser = argparse.ArgumentParser(description=__doc__)
  default = _ROOT / 'docs/figures/clip_bounds.png'
  parser.add_argument('--out', type=pathlib.Path, default=default)
  draw(curves(), parser.parse_args().out)


if __name__ == '__main__':
  main()
