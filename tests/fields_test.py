"""Tests of `dapo_jax.data.fields`; the messages are in sources_test too."""

from absl.testing import absltest, parameterized

from dapo_jax.data import fields


class FieldsTest(parameterized.TestCase):
  def test_what_is_right_is_returned_as_it_is(self):
    self.assertEqual(fields.text(' ', 'f:1', 'x'), ' ')
    self.assertEqual(fields.filled_text(' a ', 'f:1', 'x'), ' a ')
    self.assertEqual(fields.answer(-3, 'f:1', 'x'), '-3')
    self.assertEqual(fields.mapping({'a': 1}, 'f:1', 'x'), {'a': 1})
    self.assertEqual(
      fields.messages([{'role': 'user', 'content': 'p', 'n': 1}], 'f:1', 'x'),
      [('user', 'p')],
    )

  def test_an_integer_may_be_a_float(self):
    self.assertEqual(fields.answer(27.0, 'f:1', 'x'), '27')
    self.assertEqual(fields.answer(-0.0, 'f:1', 'x'), '0')
    # 2^53 is also what 2^53 + 1 becomes.
    for value in (2.5, 2.0**53, float('nan'), float('-inf')):
      with self.assertRaisesRegex(ValueError, 'a string or an integer, got'):
        fields.answer(value, 'f:1', 'x')

  def test_an_error_names_place_and_field(self):
    for read, value, words in (
      (fields.text, 3, 'a string, got 3'),
      (fields.filled_text, '', 'not be empty'),
      (fields.answer, True, 'a string or an integer, got true'),
      (fields.messages, 'p', 'a list of one or more objects'),
      (fields.mapping, None, 'an object, got nothing'),
    ):
      with self.assertRaisesRegex(ValueError, rf'f:1: field `x` must.*{words}'):
        read(value, 'f:1', 'x')

  def test_what_is_shown_of_a_long_value_is_its_beginning(self):
    # A quote and 56 letters make 57 characters, then the dots.
    self.assertEqual(fields.shown('a' * 99), '"' + 'a' * 56 + '...')


if __name__ == '__main__':
  absltest.main()
