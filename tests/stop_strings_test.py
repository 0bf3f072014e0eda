"""Tests of `sampling.stop_strings`."""

import itertools

import numpy as np
from absl.testing import absltest, parameterized

import tiny_run
from dapo_jax.data import tokenizers
from dapo_jax.sampling import stop_strings

# Token i is the i-th of these; the last stands for a special token.
_PIECES = ('a', 'b', 'ab', ' b', 'ba', 'xyz', '')


def _decode(ids):
  return ''.join(_PIECES[i] for i in ids)


def _whole(decode, tokens, strings):
  """Returns the same as a finder that looks at everything, at every token."""
  for n in range(1, len(tokens) + 1):
    if any(s in decode(tokens[:n]) for s in strings):
      return n
  return None


def _in_parts(find, tokens, size):
  """Returns what a finder says that looks after every `size` tokens."""
  for end in range(size, len(tokens) + size, size):
    found = find(tokens[:end], end - size)
    if found is not None:
      return found
  return None


class FinderTest(parameterized.TestCase):
  @parameterized.parameters(
    # Tokens, strings, length: 'ab' begins in one token and ends in the next.
    ([0, 1], ('ab',), 2),
    ([2], ('ab',), 1),
    ([0, 0, 4, 5], ('ab',), 3),
    ([0, 3, 1], ('ab',), None),
    ([0, 3, 1], ('bb',), 3),
    # A token that says nothing lies between.
    ([0, 6, 1, 0], ('ab',), 3),
    # In the middle of a token.
    ([1, 5, 0], ('y',), 2),
    # The one that is complete first, not the one that begins first.
    ([0, 1, 0, 5], ('abax', 'ba'), 3),
    ([1, 1, 1], ('a',), None),
    ([], ('a',), None),
  )
  def test_the_token_that_completes_a_string_is_the_last(
    self, tokens, strings, expected
  ):
    find = stop_strings.finder(_decode, strings)
    self.assertEqual(find(tokens, 0), expected)
    self.assertEqual(_in_parts(find, tokens, 1), expected)

  def test_without_strings_there_is_none(self):
    self.assertIsNone(stop_strings.finder(_decode, ()))

  def test_how_often_it_looks_changes_nothing(self):
    rng = np.random.default_rng(0)
    strings = ('abab', 'z b', 'bxyzb')
    find = stop_strings.finder(_decode, strings)
    found = []
    for _ in range(60):
      tokens = rng.choice(7, size=80, p=[0.3, 0.05, 0.05, 0.2, 0.05, 0.05, 0.3])
      tokens = tokens.tolist()
      expected = _whole(_decode, tokens, strings)
      found.append(expected)
      for size in (1, 7, 32, 80):
        self.assertEqual(_in_parts(find, tokens, size), expected)
    # All sorts of them: none, early and late.
    self.assertIn(None, found)
    self.assertGreater(len(set(found)), 20)

  def test_only_the_tail_is_decoded(self):
    lengths = []

    def decode(ids):
      lengths.append(len(ids))
      return _decode(ids)

    find = stop_strings.finder(decode, ('abab',))
    self.assertIsNone(find([0] * 5000, 4968))
    # 32 new tokens, and 4 + 8 characters before them.
    self.assertEqual(max(lengths), 44)
    self.assertLen(lengths, 2)

  def test_a_tail_that_says_nothing_goes_back_to_where_text_is(self):
    find = stop_strings.finder(_decode, ('ab',))
    tokens = [5] * 50 + [0] + [6] * 1000 + [1, 5]
    self.assertEqual(find(tokens, 1051), 1052)

  def test_characters_of_several_tokens_and_leading_spaces(self):
    # Trained on sums, it spells everything else in bytes.
    tokenizer = tokenizers.load(tiny_run.model_folder())
    text = '1+2=3 \N{SNOWMAN}\N{SNOWMAN} x \N{OWL} 12 \N{SNOWMAN} end'
    tokens = tokenizer.encode(text)
    self.assertGreater(len(tokens), len(text))
    for string in ('\N{OWL}', ' \N{OWL} ', '\N{SNOWMAN} x', ' 12', 'end'):
      find = stop_strings.finder(tokenizer.decode, (string,))
      expected = _whole(tokenizer.decode, tokens, (string,))
      self.assertGreater(expected, 0)
      for size in range(1, 12):
        self.assertEqual(_in_parts(find, tokens, size), expected)


class DecoderTest(parameterized.TestCase):
  @parameterized.parameters(
    ([5, 0, 1], ('ab',), 'xyz'),
    ([5, 0, 1], ('q', 'zab'), 'xy'),
    ([2, 1], ('ab',), ''),
    ([5, 1], ('ab',), 'xyzb'),
    ([5, 1], (), 'xyzb'),
    # Two strings in the last token: the first counts.
    ([0, 5], ('yz', 'xy'), 'a'),
  )
  def test_the_text_ends_before_the_string(self, tokens, strings, expected):
    decode = stop_strings.decoder(_decode, strings)
    self.assertEqual(decode(tokens), expected)

  def test_a_response_that_was_cut_has_no_string_in_its_text(self):
    strings = ('ab', 'z b')
    find = stop_strings.finder(_decode, strings)
    decode = stop_strings.decoder(_decode, strings)
    for tokens in itertools.product(range(7), repeat=3):
      length = find(tokens, 0)
      text = decode(tokens[:length])
      self.assertFalse(any(s in text for s in strings))
      if length is None:
        self.assertEqual(text, _decode(tokens))


if __name__ == '__main__':
  absltest.main()
