"""The demo itself: it reaches its accuracy within its time."""

import json
import pathlib
import tempfile
import time

import pytest
from absl.testing import absltest

from dapo_jax import main

_ROOT = pathlib.Path(__file__).resolve().parents[1]


def _lines(path: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().splitlines()]


class DemoTest(absltest.TestCase):
  @pytest.mark.slow
  def test_gains_40_points_and_ends_above_90_percent_in_10_minutes(self):
    demo = f'--config={_ROOT}/configs/demo.py'
    begin_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
      model = f'--config.model.path={folder}/sft/model'
      for args in (
        ('sft', demo, f'--workdir={folder}/sft'),
        ('train', demo, f'--workdir={folder}/rl', model),
      ):
        self.assertEqual(main.main(args), 0)
      lines = _lines(pathlib.Path(folder, 'rl/metrics.jsonl'))
    accuracy = [
      line['eval/accuracy_frac']
      for line in lines
      if 'eval/accuracy_frac' in line
    ]
    self.assertBetween(accuracy[0], 0.30, 0.55)
    self.assertGreaterEqual(accuracy[-1], 0.90)
    self.assertGreaterEqual(accuracy[-1] - accuracy[0], 0.40)
    self.assertLess(time.perf_counter() - begin_s, 600.0)


if __name__ == '__main__':
  absltest.main()
