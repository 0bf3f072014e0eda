"""Tests of `sampling.decode`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_engine
import tolerances
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import cache_layout, decode, insertion, token_choice
from dapo_jax.sampling import limits as limits_lib

_EOS_IDS = (50, 51)
_SLOTS = 4
_LIMITS = limits_lib.Limits(
  slots=_SLOTS, prompt_tokens=6, response_tokens=8, cache='dense'
)
# After 30 come 31, 32, ...; 60 -> 0 -> 1 -> 50; 40 -> 51; 45 -> 46 -> 50.
_MODEL, _PARAMS = tiny_engine.chain({1: 50, 40: 51, 46: 50})
_LAYOUT = cache_layout.make(_MODEL, _LIMITS, mesh_lib.local_mesh())
_step_fn = functools.partial(decode.step, _LAYOUT, _MODEL.graphdef, _EOS_IDS)
_empty = jax.jit(functools.partial(decode.empty_state, _LAYOUT, _LIMITS))
_prefill = jax.jit(functools.partial(decode.prefill, _MODEL.graphdef, 16))
_insert = jax.jit(functools.partial(decode.insert_group, _LAYOUT))
_step = jax.jit(_step_fn)
_chunk = jax.jit(functools.partial(decode.chunk, _step_fn))


def _inserted(
  state, prompt, slots, *, limit=8, temperature=1.0, keys=None, **filters
) -> decode.DecodeState:
  """Returns the state with a prompt in slots, places beyond 4 unused."""
  padded = np.zeros(16, np.int32)
  padded[: len(prompt)] = prompt
  places = np.full(_SLOTS, _SLOTS, np.int32)
  places[: len(slots)] = slots
  if keys is None:
    keys = np.arange(2 * _SLOTS, dtype=np.uint32).reshape(_SLOTS, 2)
  return _insert(
    state=state,
    prefix=_prefill(_PARAMS, padded, np.int32(len(prompt))),
    samples=insertion.Samples(
      places,
      keys,
      np.full(_SLOTS, limit, np.int32),
      token_choice.as_arrays(token_choice.Choice(temperature, **filters)),
    ),
  )


def _started(prompts, *, limits=(8,) * _SLOTS) -> decode.DecodeState:
  """Returns empty slots with prompt i in slot i."""
  state = _empty()
  for slot, prompt in enumerate(prompts):
    state = _inserted(state, prompt, [slot], limit=limits[slot])
  return state


def _run(state, *, max_steps=100, leave_after=100):
  state, steps = _chunk(
    _PARAMS,
    state=state,
    max_steps=np.int32(max_steps),
    leave_after=np.int32(leave_after),
  )
  return state, int(steps)


def _response(state, slot):
  return np.asarray(state.out_tokens)[slot, : state.generated[slot]].tolist()


def _assert_same_slots(a, b, slots):
  """Compares everything of some slots, the cache included."""
  rows = lambda x: np.asarray(x)[np.asarray(slots)]
  jax.tree.map(
    lambda x, y: np.testing.assert_array_equal(rows(x), rows(y)), a, b
  )


class ShardingsTest(absltest.TestCase):
  def test_slots_are_split_over_slot_and_caches_over_tensor_too(self):
    mesh = mesh_lib.engine_mesh(jax.devices()[:8], tensor=2)
    shapes = jax.eval_shape(_empty)
    layout = cache_layout.make(_MODEL, _LIMITS, mesh)
    shardings = decode.state_shardings(layout, mesh)
    shards = jax.tree.map(
      lambda array, sharding: sharding.shard_shape(array.shape),
      shapes,
      shardings,
    )
    # 4 slots over 4, 2 key heads over 2; 16 entries, heads of 12.
    self.assertEqual(shards.cache.k, (((1, 1, 12, 16),),) * 2)
    self.assertEqual(shards.cache.v, (((1, 1, 16, 12),),) * 2)
    self.assertEqual(shards.sample_key, (1, 2))
    self.assertEqual(shards.out_tokens, (1, 8))
    self.assertEqual(shards.live, (1,))
    self.assertEqual(tuple(shards.choice), ((1,),) * 4)


class InsertTest(absltest.TestCase):
  def test_slots_of_a_group_share_all_but_their_keys(self):
    choice = dict(temperature=0.5, top_k=9, top_p=0.25, min_p=0.125)
    state = _inserted(_empty(), [5, 6, 30], [3, 1], limit=7, **choice)
    self.assertEqual(state.token.tolist(), [0, 30, 0, 30])
    self.assertEqual(state.position.tolist(), [0, 2, 0, 2])
    self.assertEqual(state.limit.tolist(), [0, 7, 0, 7])
    self.assertEqual(state.live.tolist(), [False, True, False, True])
    # Slots without a sample choose greedily, unfiltered.
    self.assertEqual(
      [x.tolist() for x in state.choice],
      [
        [0, 0.5, 0, 0.5],
        [0, 9, 0, 9],
        [1, 0.25, 1, 0.25],
        [0, 0.125, 0, 0.125],
      ],
    )
    # Sample 0 is in slot 3, sample 1 in slot 1.
    self.assertEqual(
      state.sample_key.tolist(), [[0, 0], [2, 3], [0, 0], [0, 1]]
    )
    for buffer in jax.tree.leaves(state.cache):
      buffer = np.asarray(buffer)
      np.testing.assert_array_equal(buffer[1], buffer[3])
      self.assertTrue((buffer[[0, 2]] == 0).all())

  def test_other_slots_and_slots_beyond_the_last_change_nothing(self):
    # Keys and values of this model are 0: mark the cache to see writes.
    state = jax.tree.map(lambda x: x + 1, _started([[30], [60]])._asdict())
    state = decode.DecodeState(**{**state, 'live': _empty().live})
    _assert_same_slots(_inserted(state, [9, 9], []), state, range(_SLOTS))
    after = _inserted(state, [9, 9], [2])
    _assert_same_slots(after, state, [0, 1, 3])
    self.assertFalse(
      np.array_equal(after.cache.k[0][0][2], state.cache.k[0][0][2])
    )

  def test_a_used_slot_begins_anew(self):
    state, _ = _run(_started([[30], [45]]))
    state, _ = _run(_inserted(state, [5, 60], [0]))
    self.assertEqual(_response(state, 0), [0, 1, 50])
    self.assertEqual(_response(state, 1), [46, 50])

  def test_a_limit_of_0_is_not_live(self):
    state, steps = _run(_inserted(_empty(), [30], [0], limit=0))
    self.assertEqual(steps, 0)
    self.assertEqual(state.generated.tolist(), [0] * _SLOTS)


class EndTest(absltest.TestCase):
  def test_every_eos_id_ends_its_slot_and_is_kept(self):
    state, steps = _run(_started([[60], [40], [45]]))
    self.assertEqual(_response(state, 0), [0, 1, 50])
    self.assertEqual(_response(state, 1), [51])
    self.assertEqual(_response(state, 2), [46, 50])
    self.assertFalse(state.live.any())
    self.assertEqual(steps, 3)

  def test_an_eos_in_the_prompt_ends_nothing(self):
    state, _ = _run(_started([[50, 51, 45]]))
    self.assertEqual(_response(state, 0), [46, 50])

  def test_id_0_is_a_token_like_others(self):
    state, _ = _run(_started([[59]]))
    self.assertEqual(_response(state, 0), [60, 0, 1, 50])

  def test_the_limit_ends_a_slot_by_length(self):
    state, steps = _run(_started([[30], [20], [10]], limits=(1, 3, 8)))
    self.assertEqual(_response(state, 0), [31])
    self.assertEqual(_response(state, 1), [21, 22, 23])
    self.assertEqual(_response(state, 2), [11, 12, 13, 14, 15, 16, 17, 18])
    self.assertEqual(steps, 8)

  def test_log_probs_lie_beside_their_tokens(self):
    state, _ = _run(_started([[60]]))
    # Of logits 80 and 60 times 0, the successor's probability is 1.
    np.testing.assert_array_equal(state.out_logp[0], 0)

  def test_log_probs_are_those_at_the_slots_temperature(self):
    keys = np.arange(8, dtype=np.uint32).reshape(4, 2)
    state = _inserted(_empty(), [10], [0, 1, 2, 3], temperature=20.0, keys=keys)
    state, _ = _run(state)
    # The first token is 11 or not: logits 4 and 60 times 0, the sum's
    # logarithm ln(54.598 + 60) = 4.7414. RMS norm's epsilon takes 1e-4.
    expected = np.where(state.out_tokens[:, 0] == 11, -0.7414, -4.7414)
    np.testing.assert_allclose(state.out_logp[:, 0], expected, atol=2e-4)
    self.assertLen(set(expected.tolist()), 2)


class FilterTest(absltest.TestCase):
  def test_each_slot_is_filtered_by_its_own_numbers(self):
    keys = np.zeros((4, 2), np.uint32)
    state = _inserted(_empty(), [10], [0], temperature=20.0, keys=keys)
    for slot, filters in (
      (1, dict(top_k=1)),
      (2, dict(top_p=0.01)),
      (3, dict(min_p=0.1)),
    ):
      state = _inserted(
        state, [10], [slot], temperature=20.0, keys=keys, **filters
      )
    state, _ = _run(state)
    # Of logits 4 and 60 times 0 only the successor is likely enough.
    for slot in (1, 2, 3):
      self.assertEqual(_response(state, slot), [*range(11, 19)])
    self.assertNotEqual(_response(state, 0), [*range(11, 19)])


class NoiseTest(absltest.TestCase):
  def test_it_is_numbered_by_response_tokens_not_by_positions(self):
    state = _inserted(_empty(), [10], [0], temperature=60.0)
    state = _inserted(state, [5, 6, 7, 10], [1], temperature=60.0)
    state, _ = _run(state)
    # The logits depend on the last token alone, and both are sample 0.
    self.assertEqual(_response(state, 0), _response(state, 1))
    # It is noise: not the likeliest, and more than one token.
    self.assertGreater(len(_response(state, 0)), 2)
    self.assertNotEqual(_response(state, 0)[:3], [11, 12, 13])


class StandStillTest(absltest.TestCase):
  def test_a_slot_that_is_not_live_stands_still(self):
    # Slot 0 goes on, slots 1 and 2 end, slot 3 was never used.
    state, _ = _run(_started([[10], [40], [30]], limits=(8, 8, 1)), max_steps=1)
    self.assertEqual(state.live.tolist(), [True, False, False, False])
    after, steps = _run(state, max_steps=3)
    self.assertEqual(steps, 3)
    without_cache = lambda state: state._replace(cache=None)
    _assert_same_slots(without_cache(after), without_cache(state), [1, 2, 3])
    # Of slot 0 what moves has moved.
    self.assertEqual(_response(after, 0), [11, 12, 13, 14])
    self.assertEqual(after.position[0], state.position[0] + 3)
    self.assertEqual(after.token[0], 14)
    self.assertEqual(after.sample_key[0].tolist(), state.sample_key[0].tolist())

  def test_it_leaves_the_entries_before_its_position(self):
    model, params = tiny_engine.model(), tiny_engine.params()
    layout = cache_layout.make(model, _LIMITS, mesh_lib.local_mesh())
    step = jax.jit(functools.partial(decode.step, layout, model.graphdef, ()))
    empty = decode.empty_state(layout, _LIMITS)
    state = empty._replace(
      position=empty.position + 5,
      cache=jax.tree.map(lambda x: x + 1, empty.cache),
      live=empty.live.at[0].set(True),
      limit=empty.limit + 8,
    )
    after = step(params, state=state)
    for blocks, later, axis in (
      (state.cache.k[0], after.cache.k[0], 3),
      (state.cache.v[1], after.cache.v[1], 2),
    ):
      before, now = (np.moveaxis(b[0], axis, 1) for b in (blocks, later))
      np.testing.assert_array_equal(now[:, :5], before[:, :5])
      self.assertFalse(np.array_equal(now[0, 5], before[0, 5]))


class ReadTest(absltest.TestCase):
  def test_rows_are_taken_by_their_slots(self):
    state, _ = _run(_started([[10], [40], [30]]), max_steps=4)
    tokens, logp = decode.take_rows(state, jnp.array([2, 0, 2]))
    np.testing.assert_array_equal(
      tokens, state.out_tokens[jnp.array([2, 0, 2])]
    )
    np.testing.assert_array_equal(logp, state.out_logp[jnp.array([2, 0, 2])])


class ChunkTest(parameterized.TestCase):
  @parameterized.parameters(
    # Slots end after 2, 4, 6 and 6 steps.
    (1, 100, 2),
    (2, 100, 4),
    (3, 100, 6),
    (5, 100, 6),
    (5, 3, 3),
    (2, 3, 3),
    (1, 1, 1),
    (1, 0, 0),
  )
  def test_it_leaves_when_enough_ended_or_at_the_last_step(
    self, leave_after, max_steps, expected
  ):
    state = _started([[10], [10], [10], [10]], limits=(2, 4, 6, 6))
    state, steps = _run(state, leave_after=leave_after, max_steps=max_steps)
    self.assertEqual(steps, expected)
    generated = [min(limit, expected) for limit in (2, 4, 6, 6)]
    self.assertEqual(state.generated.tolist(), generated)

  def test_slots_that_ended_before_do_not_count(self):
    state = _started([[10], [10], [10], [10]], limits=(2, 4, 6, 6))
    state, _ = _run(state, leave_after=1)
    state, steps = _run(state, leave_after=1)
    self.assertEqual(steps, 2)
    self.assertEqual(state.live.tolist(), [False, False, True, True])

  def test_with_none_live_it_does_nothing(self):
    state, steps = _run(_empty())
    self.assertEqual(steps, 0)
    _assert_same_slots(state, _empty(), range(_SLOTS))

  def test_chunks_of_any_length_are_single_steps(self):
    whole, _ = _run(_started([[60], [10], [45], [3]]))
    parts = stepped = _started([[60], [10], [45], [3]])
    for max_steps in (1, 3, 100):
      parts, _ = _run(parts, max_steps=max_steps)
    for _ in range(8):
      stepped = _step(_PARAMS, state=stepped)
    for other in (parts, stepped):
      for name in ('token', 'position', 'generated', 'live', 'out_tokens'):
        np.testing.assert_array_equal(
          getattr(other, name), getattr(whole, name), name
        )
      np.testing.assert_allclose(
        other.out_logp, whole.out_logp, atol=tolerances.F32_LOGP
      )


class PartsTest(parameterized.TestCase):
  @parameterized.parameters(17, 31, 32, 33, 47, 48, 64)
  def test_a_prompt_in_parts_is_the_prompt(self, length):
    # Parts of 16 tokens in a bucket of 64, the last of them padding or cut.
    model, params = tiny_engine.model(), tiny_engine.params()
    rng = np.random.default_rng(length)
    tokens = np.zeros(64, np.int32)
    tokens[:length] = rng.integers(61, size=length)
    whole, parts = (
      jax.jit(functools.partial(decode.prefill, model.graphdef, part_tokens))(
        params, tokens, np.int32(length)
      )
      for part_tokens in (64, 16)
    )
    for name in ('k', 'v'):
      np.testing.assert_allclose(
        getattr(parts, name)[:, :length],
        getattr(whole, name)[:, :length],
        atol=tolerances.F32_ATOL,
      )
    self.assertEqual(parts.last_token, whole.last_token)
    self.assertEqual(parts.length_tokens, length)


class PrefillTest(absltest.TestCase):
  def test_padding_of_a_prompt_changes_nothing(self):
    model, params = tiny_engine.model(), tiny_engine.params()
    prefill = jax.jit(functools.partial(decode.prefill, model.graphdef, 16))
    padded = np.full(16, 60, np.int32)
    padded[:5] = [3, 1, 4, 1, 5]
    short = prefill(params, padded[:5], np.int32(5))
    long = prefill(params, padded, np.int32(5))
    np.testing.assert_allclose(long.k[:, :5], short.k, atol=tolerances.F32_ATOL)
    np.testing.assert_allclose(long.v[:, :5], short.v, atol=tolerances.F32_ATOL)
    self.assertEqual((long.last_token, long.length_tokens), (5, 5))


if __name__ == '__main__':
  absltest.main()
