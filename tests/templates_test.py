"""Tests of `dapo_jax.data.templates`."""

import re

from absl.testing import absltest

from dapo_jax.data import records, templates
from dapo_jax.rewards import dapo_math

_PROBLEM = [records.Message('user', '47+38=?')]


class RenderTest(absltest.TestCase):
  def test_plain_is_the_words_as_they_are(self):
    self.assertEqual(templates.render(_PROBLEM, 'plain'), '47+38=?\n')

  def test_plain_puts_each_message_on_its_own_line(self):
    messages = [records.Message('system', 'Be brief.'), *_PROBLEM]
    self.assertEqual(
      templates.render(messages, 'plain'), 'Be brief.\n47+38=?\n'
    )

  def test_dapo_has_the_problem_alone_between_request_and_reminder(self):
    text = templates.render(_PROBLEM, 'dapo')
    request, problem, reminder = text.split('\n\n')
    self.assertEqual(problem, '47+38=?')
    self.assertIn('step by step', request)
    self.assertIn('"Answer:"', reminder)
    self.assertEndsWith(reminder, '\n')

  def test_a_right_answer_in_the_form_that_dapo_asks_for_is_read(self):
    form = re.search(r'Answer: \$Answer', templates.render(_PROBLEM, 'dapo'))
    response = f'40+30=70, 7+8=15.\n{form[0].replace("$Answer", "85")}'
    verdict = dapo_math.score(response, '85')
    self.assertTrue(verdict.correct)
    self.assertEqual(verdict.extracted, '85')

  def test_the_problem_is_not_searched_for_placeholders(self):
    messages = [records.Message('user', 'What are {x} and $Answer?')]
    self.assertIn(
      '\n\nWhat are {x} and $Answer?\n\n', templates.render(messages, 'dapo')
    )

  def test_an_unknown_template_is_an_error_that_lists_the_known(self):
    with self.assertRaisesRegex(
      ValueError, r"plain, dapo, got 'DAPO'; .*--config\.data\.template"
    ):
      templates.render(_PROBLEM, 'DAPO')

  def test_every_name_is_a_template(self):
    for name in templates.NAMES:
      self.assertIn('47+38=?', templates.render(_PROBLEM, name))


if __name__ == '__main__':
  absltest.main()
