"""Tests of the loss aggregations."""

import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.objective import weighting

_GOLDEN = np.load(pathlib.Path(__file__).parent / 'data/golden/agg_loss.npz')
_CASES = sorted({name.split('/')[0] for name in _GOLDEN.files})


def _loss(rows, prompt_ids=None, *, keep=None, **kwargs):
  """The weighted sum of ragged rows of per-token losses."""
  lengths = np.array([len(row) for row in rows])
  if prompt_ids is None:
    prompt_ids = [0] * len(rows)
  weights = weighting.token_weights(
    lengths,
    np.array(prompt_ids),
    keep=None if keep is None else np.array(keep),
    **kwargs,
  )
  return sum(w * sum(row) for w, row in zip(weights, rows, strict=True))


class TokenWeightsTest(parameterized.TestCase):
  @parameterized.parameters(
    # (2*1 + 1*3) / 3 tokens.
    ('token_mean', 5 / 3),
    # (1 + 3) / 2 responses.
    ('sequence_mean', 2.0),
    # One prompt: the group's token mean is the token mean.
    ('group_token_mean', 5 / 3),
    # 1 + 3, over one prompt.
    ('only_token_mean', 4.0),
    # (2 + 3) / (2 responses * 4 tokens).
    ('constant', 5 / 8),
  )
  def test_each_mode_by_name(self, mode, expected):
    loss = _loss([[1.0, 1.0], [3.0]], mode=mode, max_response_tokens=4)
    self.assertAlmostEqual(loss, expected, places=14)

  def test_long_responses_weigh_by_their_tokens(self):
    # (10 * 1.0 + 1000 * 0.1) / 1010 = 110 / 1010; a mean of the two means
    # would be 0.55.
    rows = [[1.0] * 10, [0.1] * 1000]
    self.assertAlmostEqual(_loss(rows, mode='token_mean'), 0.108911, delta=5e-7)
    self.assertAlmostEqual(_loss(rows, mode='sequence_mean'), 0.55, places=12)

  def test_devices_of_unequal_token_counts(self):
    # Tokens [1,1,1,1] on one device and [5] on another: 9 / 5, not the mean
    # of the devices' means, 3.
    loss = _loss([[1.0] * 4, [5.0]], mode='token_mean')
    self.assertAlmostEqual(loss, 1.8, places=14)

  def test_group_mean_differs_from_batch_mean(self):
    # Group 1 has 4 tokens of loss 1, group 2 one of loss 3: 7/5 over the
    # batch, (1 + 3) / 2 over groups.
    rows, ids = [[1.0, 1.0], [1.0, 1.0], [3.0]], [7, 7, 9]
    self.assertAlmostEqual(_loss(rows, ids, mode='token_mean'), 1.4, places=14)
    self.assertAlmostEqual(
      _loss(rows, ids, mode='group_token_mean'), 2.0, places=14
    )

  @parameterized.product(
    mode=('token_mean', 'group_token_mean', 'sequence_mean'),
    parts=(1, 2, 4, 8),
  )
  def test_unit_losses_give_one_under_any_split(self, mode, parts):
    lengths = np.array([1, 7, 3, 5, 2, 2, 9, 4])
    ids = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    weights = weighting.token_weights(lengths, ids, mode=mode)
    shares = np.split(weights * lengths, parts)
    self.assertAlmostEqual(sum(share.sum() for share in shares), 1.0, places=14)

  def test_unit_losses_give_responses_per_prompt_in_only_token_mean(self):
    # DCPO eq. 8 sums over a prompt's responses: 2 here.
    lengths = np.array([1, 7, 3, 5])
    weights = weighting.token_weights(
      lengths, np.array([0, 0, 1, 1]), mode='only_token_mean'
    )
    self.assertAlmostEqual((weights * lengths).sum(), 2.0, places=14)

  def test_only_token_mean_is_group_size_times_sequence_mean(self):
    lengths = np.array([1, 7, 3, 5, 2, 2])
    ids = np.array(['a', 'a', 'a', 'b', 'b', 'b'])
    only = weighting.token_weights(lengths, ids, mode='only_token_mean')
    sequence = weighting.token_weights(lengths, ids, mode='sequence_mean')
    np.testing.assert_allclose(only, 3 * sequence, rtol=1e-15)

  def test_constant_does_not_depend_on_lengths(self):
    short = weighting.token_weights(
      np.array([1, 2]),
      np.zeros(2, int),
      mode='constant',
      max_response_tokens=50,
    )
    np.testing.assert_allclose(short, [0.01, 0.01], rtol=1e-15)

  @parameterized.parameters(*weighting.MODES)
  def test_masked_response_leaves_the_divisor_too(self, mode):
    # Two responses of 4 tokens, loss 1; with the second masked the first is
    # all there is: 1.0 in every mode (constant: 4 / (1 * 4)).
    loss = _loss(
      [[1.0] * 4, [1.0] * 4],
      mode=mode,
      keep=[True, False],
      max_response_tokens=4,
    )
    self.assertAlmostEqual(loss, 1.0, places=14)

  @parameterized.parameters(*weighting.MODES)
  def test_dropping_a_response_equals_masking_it(self, mode):
    rows = [[1.0, 2.0], [3.0], [4.0] * 5, [2.0] * 3, [9.0]]
    ids = [0, 0, 1, 1, 2]
    keep = [True, False, True, True, False]
    kept = [row for row, k in zip(rows, keep, strict=True) if k]
    kept_ids = [i for i, k in zip(ids, keep, strict=True) if k]
    self.assertAlmostEqual(
      _loss(rows, ids, mode=mode, keep=keep, max_response_tokens=8),
      _loss(kept, kept_ids, mode=mode, max_response_tokens=8),
      places=14,
    )

  @parameterized.parameters(
    # Prompt 0: lengths 2 and 6, the second masked; prompt 1: 4, masked.
    # Sum of lengths 12, one token of loss 1 kept twice.
    ('token_mean', 2 / 12),
    # P = 2 prompts, the group's 8 tokens.
    ('group_token_mean', 2 / 16),
    # B = 3 responses, a mean of 1.
    ('sequence_mean', 1 / 3),
    # P = 2.
    ('only_token_mean', 1 / 2),
    # B = 3 responses of 10 tokens.
    ('constant', 2 / 30),
  )
  def test_masked_response_may_stay_in_the_divisor(self, mode, expected):
    loss = _loss(
      [[1.0] * 2, [1.0] * 6, [1.0] * 4],
      [0, 0, 1],
      mode=mode,
      keep=[True, False, False],
      max_response_tokens=10,
      count_masked=True,
    )
    self.assertAlmostEqual(loss, expected, places=14)

  @parameterized.parameters(*weighting.MODES)
  def test_masking_leaves_the_others_alone_when_it_is_counted(self, mode):
    lengths, ids = np.array([2, 6, 4, 0]), np.array([0, 0, 1, 1])
    weigh = lambda keep: weighting.token_weights(
      lengths,
      ids,
      mode=mode,
      max_response_tokens=8,
      keep=keep,
      count_masked=True,
    )
    keep = np.array([True, False, True, True])
    np.testing.assert_array_equal(weigh(keep), np.where(keep, weigh(None), 0.0))

  @parameterized.product(mode=weighting.MODES, count_masked=(False, True))
  def test_all_masked_gives_zeros_counted_or_not(self, mode, count_masked):
    weights = weighting.token_weights(
      np.array([3, 5]),
      np.array([0, 1]),
      mode=mode,
      max_response_tokens=8,
      keep=np.array([False, False]),
      count_masked=count_masked,
    )
    np.testing.assert_array_equal(weights, [0.0, 0.0])

  @parameterized.parameters(
    # A: advantage 1, 500 tokens; B: 1/2, 1500 tokens. Over 2000 tokens:
    # 500 / 2000 and 750 / 2000.
    ('token_mean', 0.25, 0.375),
    # Over 2 responses, or over 1 prompt: twice as much to A.
    ('sequence_mean', 0.5, 0.25),
    ('only_token_mean', 1.0, 0.5),
  )
  def test_papers_example_of_lengths(self, mode, share_a, share_b):
    lengths = np.array([500, 1500])
    weights = weighting.token_weights(lengths, np.zeros(2, int), mode=mode)
    shares = weights * lengths * [1.0, 0.5]
    np.testing.assert_allclose(shares, [share_a, share_b], rtol=1e-14)

  @parameterized.parameters(*weighting.MODES)
  def test_empty_response_equals_an_absent_one(self, mode):
    with_empty = _loss(
      [[1.0, 2.0], [], [3.0]], [0, 0, 1], mode=mode, max_response_tokens=8
    )
    without = _loss(
      [[1.0, 2.0], [3.0]], [0, 1], mode=mode, max_response_tokens=8
    )
    self.assertAlmostEqual(with_empty, without, places=14)

  @parameterized.parameters(*weighting.MODES)
  def test_all_masked_gives_zeros(self, mode):
    weights = weighting.token_weights(
      np.array([3, 0]),
      np.array([0, 1]),
      mode=mode,
      max_response_tokens=8,
      keep=np.array([False, True]),
    )
    np.testing.assert_array_equal(weights, [0.0, 0.0])

  def test_prompt_drawn_twice_is_two_groups(self):
    # Ids name draws. As two groups: (1 + 3) / 2; as one it would be 5/3.
    rows = [[1.0, 1.0], [3.0]]
    loss = _loss(rows, ['draw-4', 'draw-9'], mode='group_token_mean')
    self.assertAlmostEqual(loss, 2.0, places=14)

  def test_order_of_responses_does_not_matter(self):
    lengths, ids = np.array([1, 7, 3, 5]), np.array([5, 2, 5, 2])
    order = np.array([2, 0, 3, 1])
    for mode in ('token_mean', 'group_token_mean', 'only_token_mean'):
      straight = weighting.token_weights(lengths, ids, mode=mode)
      shuffled = weighting.token_weights(lengths[order], ids[order], mode=mode)
      np.testing.assert_array_equal(shuffled, straight[order])

  def test_unknown_mode_names_the_flag_and_the_modes(self):
    with self.assertRaisesRegex(
      ValueError, r'seq_mean.*--config\.objective\.aggregation.*token_mean'
    ):
      _loss([[1.0]], mode='seq_mean')

  def test_constant_without_its_divisor_is_refused(self):
    with self.assertRaisesRegex(
      ValueError, r'--config\.rollout\.max_response_tokens'
    ):
      _loss([[1.0]], mode='constant')


class GoldenTest(parameterized.TestCase):
  def _aggregate(self, case, mode):
    losses = _GOLDEN[f'{case}/in/loss_mat'].astype(np.float64)
    mask = _GOLDEN[f'{case}/in/mask'] > 0
    lengths = mask.sum(axis=1)
    weights = weighting.token_weights(
      lengths,
      np.zeros(len(lengths), np.int64),
      mode=mode,
      max_response_tokens=mask.shape[1],
    )
    total = np.where(mask, weights[:, None] * losses, 0.0).sum()
    return total, np.count_nonzero(lengths)

  @parameterized.parameters(*_CASES)
  def test_token_mean(self, case):
    loss, responses = self._aggregate(case, 'token_mean')
    reference = _GOLDEN[f'{case}/verl/token-mean']
    if responses == 0:
      # The reference divides 0 by 0 here.
      self.assertTrue(np.isnan(reference))
      reference = 0.0
    np.testing.assert_allclose(loss, reference, rtol=1e-12)

  @parameterized.parameters(*_CASES)
  def test_sequence_mean(self, case):
    loss, responses = self._aggregate(case, 'sequence_mean')
    row_means = _GOLDEN[f'{case}/derived/otm_paper']
    np.testing.assert_allclose(loss, row_means / max(responses, 1), rtol=1e-12)
    if responses and '_in_pad' not in case:
      # The reference adds 1e-8 to each row's length, divides 0 by 0 when all
      # is masked, and lets NaN and 1e30 in the padding through.
      reference = _GOLDEN[f'{case}/verl/seq-mean-token-mean']
      np.testing.assert_allclose(loss, reference, atol=1e-8)

  @parameterized.parameters(*_CASES)
  def test_only_token_mean_of_one_prompt_is_the_paper(self, case):
    loss, _ = self._aggregate(case, 'only_token_mean')
    reference = _GOLDEN[f'{case}/derived/otm_paper']
    np.testing.assert_allclose(loss, reference, rtol=1e-12)

  def test_padding_leaks_in_the_reference_only(self):
    # Selection keeps it out; the reference multiplies by the mask.
    for case in ('b4t6_nan_in_pad', 'b4t6_huge_in_pad'):
      loss, _ = self._aggregate(case, 'sequence_mean')
      self.assertLess(abs(loss), 10.0)
    reference = _GOLDEN['b4t6_nan_in_pad/verl/seq-mean-token-mean']
    self.assertTrue(np.isnan(reference))

  @parameterized.parameters('b4t6', 'b16t40', 'b6t10_holes')
  def test_published_only_token_mean_is_not_the_papers(self, case):
    # It is the token mean of the micro-batch; before that it was a plain sum.
    mean, _ = self._aggregate(case, 'token_mean')
    published = _GOLDEN[f'{case}/dcpo/only-token-mean']
    np.testing.assert_allclose(published, mean, rtol=1e-7)
    loss, _ = self._aggregate(case, 'only_token_mean')
    before = _GOLDEN[f'{case}/dcpo_prefix/only-token-mean']
    for other in (published, before):
      self.assertGreater(abs(loss - other), 0.1 * abs(loss))

  @parameterized.parameters(*[c for c in _CASES if 'nan' not in c])
  def test_constant_times_responses_is_the_reference_sum(self, case):
    # The reference divides the sum by the width, not by the responses.
    loss, responses = self._aggregate(case, 'constant')
    reference = _GOLDEN[f'{case}/verl/seq-mean-token-sum-norm']
    np.testing.assert_allclose(loss * responses, reference, rtol=1e-12)


if __name__ == '__main__':
  absltest.main()
