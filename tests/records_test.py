"""Tests of `dapo_jax.data.records`."""

import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.data import records

_PROBLEM = (records.Message('user', '1+1=?'),)


def _group(lengths, correct, overlong):
  """Returns a group with responses of these lengths and verdicts."""
  responses = tuple(
    records.Response(
      tokens=np.zeros(n, np.int32),
      logp_sampler=np.zeros(n, np.float32),
      finish='eos',
      text='',
    )
    for n in lengths
  )
  correct = np.array(correct)
  return records.Group(
    draw=records.Draw(0, 0, records.make_prompt('sums', _PROBLEM, '2')),
    prompt_tokens=np.array([5, 6], np.int32),
    responses=responses,
    correct=correct,
    correctness=np.where(correct, 1.0, -1.0),
    format=np.zeros(len(correct)),
    overlong=np.array(overlong, np.float64),
    extracted=('',) * len(lengths),
  )


class PromptIdTest(parameterized.TestCase):
  def test_is_the_hash_of_the_fields_as_json(self):
    # printf '["sums",[["user","1+1=?"]],"2"]' | sha256sum | head -c 16
    self.assertEqual(
      records.prompt_id('sums', _PROBLEM, '2'), '95e758878f5c7bd5'
    )

  @parameterized.parameters(
    ('sum', [('user', 's1+1=?')], '2'),
    ('sums', [('user', '1+1=?2')], ''),
    ('sums', [('user', '1+1=?'), ('', '')], '2'),
    ('sums', [('user', '1+1'), ('user', '=?')], '2'),
    ('sums', [('user1', '+1=?')], '2'),
    ('sums', [('user', '1+1=?"]],"2')], '2'),
    ('sums', [], '2'),
  )
  def test_no_other_split_of_the_text_has_the_same(
    self, dataset, messages, gold
  ):
    messages = [records.Message(*m) for m in messages]
    self.assertNotEqual(
      records.prompt_id(dataset, messages, gold),
      records.prompt_id('sums', _PROBLEM, '2'),
    )

  def test_takes_any_string_python_has(self):
    lone_surrogate = [records.Message('user', '\ud800')]
    self.assertLen(records.prompt_id('sums', lone_surrogate, '2'), 16)


class MakePromptTest(absltest.TestCase):
  def test_the_solution_does_not_change_the_id(self):
    without = records.make_prompt('sums', _PROBLEM, '2')
    with_one = records.make_prompt('sums', _PROBLEM, '2', solution='Answer: 2')
    self.assertEqual(without.id, with_one.id)
    self.assertEqual(without.solution, '')
    self.assertEqual(with_one.solution, 'Answer: 2')

  def test_messages_become_a_tuple_so_that_prompts_hash(self):
    prompt = records.make_prompt('sums', list(_PROBLEM), '2')
    self.assertEqual(prompt.messages, _PROBLEM)
    self.assertIn(prompt, {prompt})


class GroupTest(absltest.TestCase):
  def test_rewards_are_correctness_plus_overlong(self):
    group = _group([3, 8], correct=[True, False], overlong=[0.0, -0.5])
    np.testing.assert_array_equal(records.group_rewards(group), [1.0, -1.5])
    self.assertEqual(records.group_rewards(group).dtype, np.float64)

  def test_correct_count_ignores_the_overlong_punishment(self):
    group = _group([9, 9, 9], [True, True, False], overlong=[-1.0, -1.0, -1.0])
    self.assertEqual(records.correct_count(group), 2)

  def test_lengths_are_those_of_the_tokens_whatever_their_ids(self):
    # All ids are 0, which is a usual pad: nothing may be left out for that.
    group = _group([3, 0, 8], [True] * 3, overlong=[0.0] * 3)
    np.testing.assert_array_equal(records.lengths_tokens(group), [3, 0, 8])
    self.assertEqual(records.lengths_tokens(group).dtype, np.int64)


class ElsewhereTest(absltest.TestCase):
  def test_its_length_and_its_end_are_known(self):
    response = records.elsewhere(5, 'length')
    self.assertEqual((response.finish, response.text), ('length', ''))
    self.assertTrue(response.is_truncated)
    for values, dtype in (
      (response.tokens, np.int32),
      (response.logp_sampler, np.float32),
    ):
      self.assertEqual((values.dtype, values.shape), (dtype, (5,)))
      self.assertFalse(values.any())

  def test_a_long_one_takes_no_memory_and_none_writes_to_it(self):
    tokens = records.elsewhere(20_480, 'eos').tokens
    self.assertEqual(tokens.strides, (0,))
    with self.assertRaisesRegex(ValueError, 'read-only'):
      tokens[0] = 1


if __name__ == '__main__':
  absltest.main()
