"""Tests of `dapo_jax.data.sources`."""

import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from dapo_jax.data import records, sources


class LoadJsonlTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def _write(self, content):
    """Returns the path of a file with this text, or these rows."""
    if isinstance(content, list):
      content = '\n'.join(json.dumps(row) for row in content)
    path = self.folder / 'sums.jsonl'
    path.write_bytes(
      content if isinstance(content, bytes) else content.encode()
    )
    return path

  def test_reads_a_problem_as_one_user_message(self):
    row = {'problem': '1+1=?', 'answer': '2', 'solution': 'Answer: 2', 'id': 7}
    self.assertEqual(
      sources.load_jsonl(self._write([row])),
      [
        records.make_prompt(
          'sums',
          [records.Message('user', '1+1=?')],
          '2',
          solution='Answer: 2',
        )
      ],
    )

  def test_reads_messages_in_order(self):
    turns = [
      {'role': 'system', 'content': 'Be brief.'},
      {'role': 'user', 'content': '1+1=?'},
    ]
    path = self._write([{'messages': turns, 'answer': '2'}])
    (prompt,) = sources.load_jsonl(str(path))
    self.assertEqual(
      prompt.messages, (('system', 'Be brief.'), ('user', '1+1=?'))
    )
    self.assertEqual(prompt.solution, '')

  @parameterized.parameters((540, '540'), (-3, '-3'), ('007', '007'))
  def test_an_answer_is_text_or_an_integer(self, answer, gold):
    path = self._write([{'problem': 'p', 'answer': answer}])
    self.assertEqual(sources.load_jsonl(path)[0].gold, gold)

  def test_blank_lines_are_skipped_and_counted_as_lines(self):
    good = '{"problem": "p", "answer": 1}'
    self.assertLen(sources.load_jsonl(self._write(f'\n{good}\r\n \t\n')), 1)
    with self.assertRaisesRegex(ValueError, r'sums\.jsonl:3: '):
      sources.load_jsonl(self._write(f'{good}\n\n{{"answer": 1}}\n'))

  def test_only_a_line_feed_ends_a_line(self):
    # Python's own idea of a line would also end it at any of these.
    text = 'a\u2028b\u2029c\x85d'
    row = json.dumps({'problem': text, 'answer': 1}, ensure_ascii=False)
    (prompt,) = sources.load_jsonl(self._write(row))
    self.assertEqual(prompt.messages[0].content, text)

  def test_a_byte_order_mark_is_no_part_of_the_text(self):
    path = self._write('\ufeff{"problem": "p", "answer": 1}\n')
    self.assertLen(sources.load_jsonl(path), 1)

  def test_duplicates_are_dropped_and_their_number_is_logged(self):
    rows = [
      {'problem': 'a', 'answer': 1, 'solution': 'first'},
      {'problem': 'b', 'answer': 1},
      {'problem': 'a', 'answer': '1', 'solution': 'second'},
      {'problem': 'a', 'answer': 2},
    ]
    with self.assertLogs('absl', level='WARNING') as logs:
      prompts = sources.load_jsonl(self._write(rows))
    self.assertEqual(
      [(p.messages[0].content, p.gold, p.solution) for p in prompts],
      [('a', '1', 'first'), ('b', '1', ''), ('a', '2', '')],
    )
    self.assertIn(
      'dropped 1 duplicates of 4 lines, kept 3 prompts', logs.output[0]
    )

  def test_says_nothing_where_there_are_no_duplicates(self):
    with self.assertNoLogs('absl', level='WARNING'):
      sources.load_jsonl(self._write([{'problem': 'a', 'answer': 1}]))

  @parameterized.named_parameters(
    ('not_json', '{"problem": ', 'expected a JSON object'),
    ('not_utf8', b'{"problem": "\xff"}', 'expected a JSON object.*utf-8'),
    ('not_an_object', '[1]', r'expected a JSON object, got \[1\]'),
    (
      'neither',
      '{"answer": 1, "question": "p"}',
      r"`problem` and `messages`, got the fields \['answer', 'question'\]",
    ),
    (
      'both',
      '{"answer": 1, "problem": "p", "messages": []}',
      'expected one of the fields `problem` and `messages`',
    ),
    (
      'problem_no_text',
      '{"answer": 1, "problem": 3}',
      'field `problem` must be a string, got 3',
    ),
    (
      'problem_empty',
      '{"answer": 1, "problem": " "}',
      'field `problem` must not be empty',
    ),
    (
      'problem_no_unicode',
      '{"answer": 1, "problem": "\\ud800"}',
      'field `problem` must be valid Unicode',
    ),
    (
      'messages_empty',
      '{"answer": 1, "messages": []}',
      r'field `messages` must be a list of one or more .*, got \[\]',
    ),
    (
      'message_no_object',
      '{"answer": 1, "messages": ["p"]}',
      r'field `messages\[0\]` must be an object .*, got "p"',
    ),
    (
      'message_no_role',
      '{"answer": 1, "messages": [{"content": "p"}]}',
      r'field `messages\[0\].role` must be a string, got nothing',
    ),
    (
      'message_no_content',
      '{"answer": 1, "messages": [{"role": "user", "content": ""}]}',
      r'field `messages\[0\].content` must not be empty',
    ),
    (
      'answer_missing',
      '{"problem": "p"}',
      'field `answer` must be a string or an integer, got nothing',
    ),
    (
      'answer_float',
      '{"problem": "p", "answer": 1.5}',
      'field `answer` must be a string or an integer, got 1.5',
    ),
    (
      'answer_bool',
      '{"problem": "p", "answer": true}',
      'field `answer` must be a string or an integer, got true',
    ),
    (
      'answer_empty',
      '{"problem": "p", "answer": ""}',
      'field `answer` must not be empty',
    ),
    (
      'solution_no_text',
      '{"problem": "p", "answer": 1, "solution": 2}',
      'field `solution` must be a string, got 2',
    ),
  )
  def test_names_file_line_and_field_of_a_bad_line(self, line, message):
    line = line if isinstance(line, bytes) else line.encode()
    path = self._write(b'{"problem": "p", "answer": 1}\n' + line)
    with self.assertRaisesRegex(ValueError, rf'sums\.jsonl:2: .*{message}'):
      sources.load_jsonl(path)

  @parameterized.parameters('', ' \n\n')
  def test_an_empty_file_is_an_error(self, content):
    with self.assertRaisesRegex(
      ValueError, r'sums\.jsonl holds no problem.*--config\.data\.source'
    ):
      sources.load_jsonl(self._write(content))

  def test_a_missing_file_is_an_error_that_names_the_flags(self):
    with self.assertRaisesRegex(
      ValueError,
      r'no file .*nowhere\.jsonl.*--config\.data\.source.*--config\.eval',
    ):
      sources.load_jsonl(self.folder / 'nowhere.jsonl')


class WithShotsTest(absltest.TestCase):
  def _prompt(self, problem, gold, solution=''):
    turn = records.Message('user', problem)
    return records.make_prompt('d', [turn], gold, solution=solution)

  def test_solved_problems_come_before_turn_by_turn(self):
    [prompt] = sources.with_shots(
      [self._prompt('2+2=?', '4', 'Answer: 4')],
      [self._prompt('1+1=?', '2', 'Answer: 2')],
    )
    self.assertEqual(
      prompt.messages,
      (('user', '1+1=?'), ('assistant', 'Answer: 2'), ('user', '2+2=?')),
    )
    self.assertEqual((prompt.gold, prompt.solution), ('4', 'Answer: 4'))

  def test_other_examples_make_another_prompt(self):
    prompt = self._prompt('2+2=?', '4')
    [plain] = sources.with_shots([prompt], [])
    [shown] = sources.with_shots([prompt], [self._prompt('1', '1', 'x')])
    self.assertEqual(plain, prompt)
    self.assertNotEqual(shown.id, prompt.id)

  def test_an_example_needs_its_solution(self):
    with self.assertRaisesRegex(
      ValueError, r'1 of the 2 .* no solution; change --config\.data\.shots'
    ):
      sources.with_shots(
        [], [self._prompt('1', '1', 'x'), self._prompt('2', '2')]
      )


class RowsTest(absltest.TestCase):
  def test_are_told_with_their_place_and_all_fields(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, 'sums.jsonl')
    path.write_text('{"problem": "1+1=?", "id": 7}\n\n{"x": []}\n')
    self.assertEqual(
      list(sources.rows(path, flags='--from')),
      [
        (f'{path}:1', {'problem': '1+1=?', 'id': 7}),
        (f'{path}:3', {'x': []}),
      ],
    )

  def test_the_flag_to_change_is_named(self):
    with self.assertRaisesRegex(ValueError, 'no file /nowhere; change --from'):
      list(sources.rows(pathlib.Path('/nowhere'), flags='--from'))


if __name__ == '__main__':
  absltest.main()
