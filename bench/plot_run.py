"""Draws what a run did: accuracy, entropy, groups and time by rollout step.

    python bench/plot_run.py WORKDIR [--out=FILE]

Reads WORKDIR/metrics.jsonl. Needs matplotlib (the extra `dev`).
"""

import argparse
import json
import pathlib
from typing import Any

import matplotlib

matplotlib.use('Agg')
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib import ticker  # noqa: E402

# Of Okabe and Ito's colours, which people tell apart who see red or green
# alike; markers and places tell curves apart without colour.
_BLUE, _ORANGE, _GREEN, _GREY = '#0072B2', '#D55E00', '#009E73', '#777777'

Rows = list[dict[str, Any]]


def read(path: pathlib.Path) -> Rows:
  """Returns the lines of a metrics.jsonl."""
  return [json.loads(line) for line in path.read_text().splitlines()]


def series(rows: Rows, name: str) -> tuple[list[int], list[float]]:
  """Returns the steps that have a metric, and its values there."""
  found = [(row['step'], row[name]) for row in rows if name in row]
  return [step for step, _ in found], [value for _, value in found]


def draw(rows: Rows) -> plt.Figure:
  """Returns the figure: four panels over the rollout steps."""
  figure, axes = plt.subplots(2, 2, figsize=(10, 6), sharex=True)
  _accuracy(axes[0, 0], rows)
  _entropy(axes[0, 1], rows)
  _groups(axes[1, 0], rows)
  _seconds(axes[1, 1], rows)
  for ax in axes.flat:
    ax.grid(color='#e5e5e5', linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[['top', 'right']].set_visible(False)
    ax.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  for ax in axes[1]:
    ax.set_xlabel('rollout step')
  figure.tight_layout()
  return figure


def _accuracy(ax: plt.Axes, rows: Rows) -> None:
  steps, train = series(rows, 'reward/first_round_correct_frac')
  ax.plot(steps, train, color=_BLUE, label='training prompts, first round')
  steps, held_out = series(rows, 'eval/accuracy_frac')
  _, stderr = series(rows, 'eval/accuracy_stderr_frac')
  ax.errorbar(
    steps,
    held_out,
    yerr=stderr,
    color=_ORANGE,
    marker='o',
    capsize=3,
    linestyle='--',
    label='held out, ± standard error',
  )
  ax.set_title('Accuracy')
  ax.set_ylim(0, 1)
  ax.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
  ax.legend(frameon=False, loc='lower right')


def _entropy(ax: plt.Axes, rows: Rows) -> None:
  ax.plot(*series(rows, 'policy/entropy_nats'), color=_BLUE)
  ax.set_title('Entropy of the policy')
  ax.set_ylabel('nats a token')
  ax.set_ylim(bottom=0)


def _groups(ax: plt.Axes, rows: Rows) -> None:
  parts = (
    ('filter/all_wrong_prompts_count', 'all wrong', _ORANGE),
    ('filter/kept_prompts_count', 'right and wrong: kept', _GREEN),
    ('filter/all_right_prompts_count', 'all right', _GREY),
  )
  steps, _ = series(rows, parts[0][0])
  values = [series(rows, name)[1] for name, _, _ in parts]
  ax.stackplot(
    steps,
    values,
    labels=[label for _, label, _ in parts],
    colors=[color for _, _, color in parts],
    alpha=0.7,
    linewidth=0,
  )
  ax.set_title('Prompts drawn')
  ax.set_ylabel('prompts')
  ax.legend(frameon=False, loc='upper left')


def _seconds(ax: plt.Axes, rows: Rows) -> None:
  parts = (
    ('time/rollout_s', 'rollout', _BLUE, '-'),
    ('time/update_s', 'updates', _ORANGE, '--'),
    ('time/old_logp_s', 'log-probs before', _GREEN, ':'),
  )
  for name, label, color, dashes in parts:
    ax.plot(*series(rows, name), color=color, linestyle=dashes, label=label)
  ax.set_title('Wall time of a step')
  ax.set_ylabel('seconds')
  ax.set_ylim(bottom=0)
  ax.legend(frameon=False)


def main() -> None:
  """Draws the figure beside the metrics, or where --out says."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('workdir', type=pathlib.Path)
  parser.add_argument('--out', type=pathlib.Path, help='PNG to write')
  args = parser.parse_args()
  file = args.workdir / 'metrics.jsonl'
  if not file.is_file():
    parser.error(f'there is no {file}')
  out = args.out or args.workdir / 'plot.png'
  draw(read(file)).savefig(out, dpi=130)
  print(f'wrote {out}')


if __name__ == '__main__':
  main()
