"""Tests of docs/rewards.md: what it says can be done."""

import pathlib
import re
import tempfile

from absl.testing import absltest, parameterized

import tiny_groups
from dapo_jax.rewards import answers, graders, own_grader

_PAGE = pathlib.Path(__file__).parents[1] / 'docs/rewards.md'


class ExampleTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    [code] = re.findall(
      r'```python\n(.*?)```', _PAGE.read_text(encoding='utf-8'), re.DOTALL
    )
    folder = self.enterContext(tempfile.TemporaryDirectory())
    file = pathlib.Path(folder, 'my_reward.py')
    file.write_text(code, encoding='utf-8')
    self.grade = own_grader.load(f'{file}:grade')

  @parameterized.parameters(
    ('Answer: 85', (1.0, True, '85')),
    ('Answer: 86', (0.0, False, '86')),
    ('Answer: 5', (-1.0, False, '5')),
    ('85', (-1.0, False, answers.NO_ANSWER)),
  )
  def test_pays_as_it_says(self, response, expected):
    prompt = tiny_groups.prompt(0)._replace(gold='85')
    self.assertEqual(self.grade(response, prompt), expected)


class NamesTest(absltest.TestCase):
  def test_the_table_has_the_graders(self):
    text = _PAGE.read_text(encoding='utf-8')
    named = re.findall(
      r'^\| `(\w+)`(?: \(default\))? \| (?:in|on) ', text, re.M
    )
    self.assertEqual(tuple(named), graders.NAMES)


if __name__ == '__main__':
  absltest.main()
