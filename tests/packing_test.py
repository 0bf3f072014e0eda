"""Tests of `training.packing`."""

import numpy as np
from absl.testing import absltest

from dapo_jax.training import packing


def _segment(prompt, response, *, number=0, weight=1.0):
  return packing.Segment(
    number,
    np.array(prompt, np.int32),
    np.array(response, np.int32),
    -np.arange(1, len(response) + 1, dtype=np.float32),
    weight,
  )


def _pack(segments, *, row_tokens=8, rows=2, most=4, share=False):
  return packing.pack(
    segments,
    row_tokens=row_tokens,
    micro_batch_rows=rows,
    max_segments=most,
    share_prompts=share,
  )


class PlacesTest(absltest.TestCase):
  """Where everything stands, worked by hand.

  Prompt 5 6 7 with response 8 9 feeds 5 6 7 8 and predicts 6 7 8 9; the first
  response token, 8, is predicted from the last prompt token, 7. Prompt 3 with
  response 4 1 feeds 3 4 and predicts 4 1. The longer one comes first.
  """

  def setUp(self):
    super().setUp()
    self.packed = _pack(
      [
        _segment([3], [4, 1], weight=0.125),
        _segment([5, 6, 7], [8, 9], weight=0.25),
      ]
    )

  def _row(self, field):
    return getattr(self.packed.rows, field)[0, 0].tolist()

  def test_tokens_and_targets(self):
    self.assertEqual(self._row('tokens'), [5, 6, 7, 8, 3, 4, 0, 0])
    self.assertEqual(self._row('targets'), [6, 7, 8, 9, 4, 1, 0, 0])

  def test_positions_begin_anew_in_each_segment(self):
    self.assertEqual(self._row('positions'), [0, 1, 2, 3, 0, 1, 0, 0])
    self.assertEqual(self._row('segment_ids'), [1, 1, 1, 1, 2, 2, 0, 0])

  def test_what_counts_is_what_predicts_a_response_token(self):
    self.assertEqual(self._row('is_response'), [0, 0, 1, 1, 1, 1, 0, 0])
    self.assertEqual(
      self._row('token_weight'), [0, 0, 0.25, 0.25, 0.125, 0.125, 0, 0]
    )

  def test_log_probs_stand_with_the_token_that_is_predicted(self):
    self.assertEqual(self._row('logp_sampler'), [0, 0, -1, -2, -1, -2, 0, 0])

  def test_values_go_to_the_responses_and_come_back(self):
    # The second segment, 8 9, stands first. A value is a number or one a token.
    self.assertEqual(self.packed.places, ((0, 4, 2), (0, 2, 2)))
    field = packing.spread(
      [-0.5, np.array([1.5, 2.5])],
      self.packed.places,
      shape=self.packed.rows.tokens.shape,
    )
    self.assertEqual(field[0, 0].tolist(), [0, 0, 1.5, 2.5, -0.5, -0.5, 0, 0])
    self.assertEqual(field.sum(), 3.0)
    taken = packing.take(field, self.packed.places)
    self.assertEqual([t.tolist() for t in taken], [[-0.5, -0.5], [1.5, 2.5]])

  def test_counts(self):
    self.assertEqual(self.packed.micro_batches, 1)
    self.assertEqual(self.packed.real_tokens, 6)
    # One micro-batch of 2 rows of 8, the second of them empty.
    self.assertEqual(self.packed.row_tokens, 16)
    self.assertEqual(self.packed.rows.segment_ids[0, 1].tolist(), [0] * 8)


class ContentTest(absltest.TestCase):
  def test_the_end_token_and_a_token_0_count_like_any_other(self):
    # What counts goes by length, never by the token.
    packed = _pack([_segment([2], [0, 0, 1])])
    self.assertEqual(
      packed.rows.is_response[0, 0].tolist(), [1, 1, 1, 0, 0, 0, 0, 0]
    )

  def test_every_segment_is_somewhere_once(self):
    rng = np.random.default_rng(0)
    segments = [
      _segment(
        rng.integers(1, 99, rng.integers(1, 8)),
        rng.integers(1, 99, rng.integers(1, 8)),
        weight=float(i),
      )
      for i in range(40)
    ]
    packed = _pack(segments, row_tokens=16, most=40)
    rows = packed.rows
    found = []
    for m, r in np.ndindex(rows.tokens.shape[:2]):
      for number in range(1, rows.segment_ids[m, r].max() + 1):
        here = rows.segment_ids[m, r] == number
        response = here & (rows.is_response[m, r] > 0)
        found.append(
          (
            rows.token_weight[m, r][response][0],
            rows.tokens[m, r][here].tolist(),
            rows.targets[m, r][response].tolist(),
          )
        )
    expected = [
      (
        s.token_weight,
        [*s.prompt_tokens, *s.response_tokens][:-1],
        s.response_tokens.tolist(),
      )
      for s in segments
    ]
    self.assertEqual(sorted(found), sorted(expected))
    self.assertEqual(packed.real_tokens, np.sum(rows.segment_ids > 0))

  def test_only_the_first_micro_batches_hold_segments(self):
    packed = _pack([_segment([1] * 4, [2] * 4)] * 5, rows=2, most=12)
    self.assertEqual(packed.micro_batches, 3)
    used = (packed.rows.segment_ids > 0).any(axis=(1, 2))
    self.assertEqual(used.tolist(), [True] * 3 + [False] * 3)
    self.assertEqual(packed.row_tokens, 3 * 2 * 8)

  def test_shapes_depend_on_the_keywords_alone(self):
    for segments in (
      [],
      [_segment([1], [2])],
      [_segment([1] * 4, [2] * 5)] * 7,
    ):
      packed = _pack(segments, row_tokens=9, rows=3, most=7)
      for field in packed.rows:
        self.assertEqual(field.shape, (3, 3, 9))
    self.assertEqual(packed.micro_batches, 3)

  def test_nothing_to_pack(self):
    packed = _pack([])
    self.assertEqual(packed.micro_batches, 0)
    self.assertEqual(packed.real_tokens, 0)
    self.assertEqual(packed.row_tokens, 0)


class RoomTest(absltest.TestCase):
  def test_a_segment_longer_than_a_row_names_the_flag(self):
    with self.assertRaisesRegex(
      ValueError, r'9 tokens.*than a row of 8; .*--config\.learner\.pack_tokens'
    ):
      _pack([_segment([1], [2] * 3), _segment([1] * 5, [2] * 5)])

  def test_a_segment_takes_no_place_for_its_last_token(self):
    self.assertEqual(_pack([_segment([1, 2, 3], [4, 5])]).real_tokens, 4)
    _pack([_segment([1] * 5, [2] * 4)], row_tokens=8)
    with self.assertRaises(ValueError):
      _pack([_segment([1] * 5, [2] * 5)], row_tokens=8)


class SharedPromptTest(absltest.TestCase):
  """Responses behind one copy of their prompt, worked by hand.

  Prompt 5 6 7 with responses 8 9 and 4: the prompt feeds 5 6, then each
  response begins with 7 again, at position 2.
  """

  def setUp(self):
    super().setUp()
    self.segments = [
      _segment([5, 6, 7], [8, 9], number=3),
      _segment([2], [1], number=4),
      _segment([5, 6, 7], [4], number=3),
    ]
    self.packed = _pack(self.segments, share=True)

  def _row(self, field):
    return getattr(self.packed.rows, field)[0, 0].tolist()

  def test_the_prompt_is_fed_once_and_its_last_token_once_a_response(self):
    self.assertEqual(self._row('tokens'), [5, 6, 7, 8, 7, 2, 0, 0])
    self.assertEqual(self._row('targets')[2:6], [8, 9, 4, 1])
    self.assertEqual(self._row('positions'), [0, 1, 2, 3, 2, 0, 0, 0])
    self.assertEqual(self._row('is_response'), [0, 0, 1, 1, 1, 1, 0, 0])
    # In the order of the segments: row, first place, length.
    self.assertEqual(self.packed.places, ((0, 2, 2), (0, 5, 1), (0, 4, 1)))
    self.assertEqual(self.packed.real_tokens, 6)

  def test_a_response_sees_its_prompt_and_not_its_neighbours(self):
    segment, prefix = self._row('segment_ids'), self._row('prefix_ids')
    sees = lambda q, k: segment[k] in (segment[q], prefix[q])
    for q in (2, 3, 4):
      self.assertTrue(sees(q, 0) and sees(q, 1))
    self.assertTrue(sees(3, 2))
    self.assertFalse(sees(4, 2) or sees(4, 3) or sees(5, 0) or sees(5, 4))

  def test_a_row_has_no_more_ids_than_places(self):
    # Two responses of one token to each of four prompts of one token fill 8.
    segments = [_segment([1], [2], number=i // 2) for i in range(8)]
    rows = _pack(segments, share=True).rows
    self.assertEqual(rows.segment_ids[0, 0].tolist(), [1, 2, 3, 4, 5, 6, 7, 8])
    np.testing.assert_array_equal(rows.prefix_ids, rows.segment_ids)


class FillTest(absltest.TestCase):
  def test_a_plan_says_where_everything_goes_whoever_fills_it(self):
    rng = np.random.default_rng(2)
    segments = [
      _segment([i // 4 + 1] * 3, rng.integers(1, 99, n), number=i // 4)
      for i, n in enumerate(rng.integers(1, 12, 24))
    ]
    packed = _pack(segments, row_tokens=16, most=24, share=True)
    for s, (row, begin, count) in zip(segments, packed.places, strict=True):
      m, r = divmod(row, 2)
      here = packed.rows.targets[m, r, begin : begin + count]
      self.assertEqual(here.tolist(), s.response_tokens.tolist())
    # Of other tokens of the same lengths the places are the same.
    others = [
      s._replace(response_tokens=s.response_tokens + 1) for s in segments
    ]
    again = _pack(others, row_tokens=16, most=24, share=True)
    self.assertEqual(again.places, packed.places)


if __name__ == '__main__':
  absltest.main()
