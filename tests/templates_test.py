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

  def test_an_answer_in_the_box_that_boxed_asks_for_is_read(self):
    text = templates.render(_PROBLEM, 'boxed')
    form = re.search(r'Answer: \\boxed\{\.\.\.\}', text)
    response = f'40+30=70, 7+8=15.\n{form[0].replace("...", "85")}'
    self.assertTrue(dapo_math.score(response, '85').correct)
    self.assertEndsWith(text, '\n\n47+38=?\n')

  def test_the_problem_is_not_searched_for_placeholders(self):
    messages = [records.Message('user', 'What are {x} and $Answer?')]
    self.assertIn(
      '\n\nWhat are {x} and $Answer?\n\n', templates.render(messages, 'dapo')
    )

  def test_an_unknown_template_is_an_error_that_lists_the_known(self):
    with self.assertRaisesRegex(
      ValueError,
      r"plain, dapo, boxed, chat, .*, got 'DAPO'; .*--config\.data\.template",
    ):
      templates.render(_PROBLEM, 'DAPO')

  def test_every_name_is_a_template(self):
    for name in templates.NAMES:
      text = templates.render(
        _PROBLEM, name, chat_text=lambda messages: f'[{messages[-1].content}]'
      )
      self.assertIn('47+38=?', text)

  def test_a_chat_is_what_the_tokenizer_makes_of_the_messages(self):
    messages = [records.Message('system', 'Be brief.'), *_PROBLEM]
    text = templates.render(
      messages,
      'chat',
      chat_text=lambda given: ''.join(f'<{m.role}>{m.content}' for m in given),
    )
    self.assertEqual(text, '<system>Be brief.<user>47+38=?')

  def test_chats_ask_for_what_their_names_say(self):
    chat_text = lambda turns: ''.join(f'<{t.role}>{t.content}' for t in turns)
    dapo = templates.render(_PROBLEM, 'chat_dapo', chat_text=chat_text)
    plain = templates.render(_PROBLEM, 'dapo')
    self.assertEqual(dapo, f'<user>{plain}'.rstrip())
    boxed = templates.render(_PROBLEM, 'chat_boxed', chat_text=chat_text)
    self.assertRegex(boxed, r'^<system>[^<]*\\boxed\{\.\.\.\}<user>47\+38=\?$')

  def test_a_chat_has_one_system_message(self):
    messages = [records.Message('system', 'Be brief.'), *_PROBLEM]
    chat_text = lambda turns: ''.join(f'<{t.role}>{t.content}' for t in turns)
    text = templates.render(messages, 'chat_boxed', chat_text=chat_text)
    self.assertStartsWith(text, '<system>Be brief.\n')
    self.assertEqual(text.count('<system>'), 1)
    # What was asked before stays as it was.
    shots = [*_PROBLEM, records.Message('assistant', 'Answer: 85'), *_PROBLEM]
    text = templates.render(shots, 'chat_dapo', chat_text=chat_text)
    self.assertStartsWith(text, '<user>47+38=?<assistant>Answer: 85<user>Work')


class _Tokenizer:
  """Ids are places in the alphabet; a chat's are above 100."""

  vocab_size = 200
  eos_ids = (0,)
  pad_id = 0

  def encode(self, text):
    return [ord(c) - ord('a') for c in text.strip()]

  def encode_chat(self, text):
    return [100 + i for i in self.encode(text)]

  def decode(self, ids):
    raise NotImplementedError

  def chat_text(self, messages):
    return 'x' + messages[0].content


class EncodeTest(absltest.TestCase):
  def test_a_chat_is_encoded_as_such_and_only_a_chat(self):
    messages = [records.Message('user', 'abc')]
    encode = lambda name: templates.encode(messages, name, _Tokenizer())
    self.assertEqual(encode('plain'), [0, 1, 2])
    # x is the 24th letter, from 0: 23.
    self.assertEqual(encode('chat'), [123, 100, 101, 102])


if __name__ == '__main__':
  absltest.main()
