"""Tests of `sampling.token_choice`."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_engine
import tolerances
from dapo_jax.sampling import token_choice

_TRAIN = token_choice.Purpose.TRAIN
# Compiled once for all tests of a shape.
_choose = jax.jit(token_choice.choose)


def _keys(*, seed=0, purpose=_TRAIN, ordinal=0, samples=1):
  return token_choice.sample_keys(seed, purpose, ordinal, samples=samples)


def _draw(logits, keys, *, token_number=0, temperature=1.0, **filters):
  """Chooses a token a slot: one row of logits, many keys, or both many."""
  choice = token_choice.Choice(temperature, **filters)
  slots = keys.shape[0]
  fill = lambda value, dtype: jnp.asarray(np.broadcast_to(value, slots), dtype)
  logits = jnp.asarray(logits, jnp.float32)
  token, logp = _choose(
    jnp.broadcast_to(logits, (slots, logits.shape[-1])),
    jnp.asarray(keys),
    token_number=fill(token_number, jnp.int32),
    choice=token_choice.Choice(
      *map(fill, choice, (jnp.float32, jnp.int32, jnp.float32, jnp.float32))
    ),
  )
  return np.asarray(token), np.asarray(logp)


class KeysTest(absltest.TestCase):
  def test_no_two_samples_share_a_key(self):
    grid = [
      (seed, purpose, ordinal)
      for seed in (0, 1, 2, 2**32 - 1)
      for purpose in token_choice.Purpose
      for ordinal in (0, 1, 2, 3, 1000, 2**31)
    ]
    keys = np.concatenate(
      [
        _keys(seed=seed, purpose=purpose, ordinal=ordinal, samples=16)
        for seed, purpose, ordinal in grid
      ]
    )
    # 4 seeds, 3 purposes, 6 ordinals, 16 samples.
    self.assertEqual(keys.shape, (1152, 2))
    self.assertLen(np.unique(keys, axis=0), 1152)

  def test_a_key_depends_on_nothing_else(self):
    np.testing.assert_array_equal(
      _keys(ordinal=4, samples=16)[:3], _keys(ordinal=4, samples=3)
    )

  def test_the_default_generator_changes_nothing(self):
    expected = _keys(ordinal=4, samples=14)
    with jax.default_prng_impl('rbg'):
      # A number of samples that is traced here.
      keys = _keys(ordinal=4, samples=13)
    np.testing.assert_array_equal(keys, expected[:13])

  def test_keys_stay_the_same_over_versions(self):
    # fold_in(k, n) is threefry of the block (0, n) under k; a resumed run
    # must find the noise it left.
    key = jax.random.key(5, impl='threefry2x32')
    for number in (int(token_choice.Purpose.EVAL), 9, 2):
      key = jax.random.fold_in(key, number)
    keys = _keys(
      seed=5, purpose=token_choice.Purpose.EVAL, ordinal=9, samples=3
    )
    np.testing.assert_array_equal(keys[2], jax.random.key_data(key))
    self.assertEqual([p.value for p in token_choice.Purpose], [0, 1, 2])


class NoiseTest(parameterized.TestCase):
  """Uniform logits over 1,000 ids: the token is the noise.

  Two independent rows of 16 draws agree in n places with probability
  C(16, n) / 1000^n: in 3 places or more, one in 1.8 million.
  """

  def _row(self, **where):
    """Returns the first 16 tokens of a sample."""
    keys = _keys(**where)[-1:]
    logits = np.zeros(1000)
    return _draw(logits, keys.repeat(16, axis=0), token_number=np.arange(16))[0]

  def test_samples_redraws_purposes_and_seeds_share_none(self):
    rows = [
      self._row(seed=s, purpose=p, ordinal=o, samples=g)
      for s in (0, 1)
      for p in token_choice.Purpose
      for o in (0, 1)
      for g in (1, 2)
    ]
    for a, b in itertools.combinations(rows, 2):
      self.assertLess((a == b).sum(), 3)

  def test_token_numbers_share_none(self):
    # Of 120 pairs of tokens 0.12 agree by chance; 3 do in 3 of 10,000 rows.
    row = self._row()
    self.assertGreater(len(set(row.tolist())), 13)

  def test_the_slot_and_its_neighbours_change_nothing(self):
    keys = _keys(samples=8)
    logits = np.random.default_rng(0).standard_normal((8, 50))
    tokens, logp = _draw(logits, keys, token_number=np.arange(8))
    order = np.array([3, 1, 7, 0, 2, 6, 5, 4])
    moved = _draw(logits[order], keys[order], token_number=order)
    np.testing.assert_array_equal(moved[0], tokens[order])
    for i in range(8):
      alone, _ = _draw(logits[i], keys[i : i + 1], token_number=i)
      self.assertEqual(alone[0], tokens[i])


class LogProbTest(parameterized.TestCase):
  # e^2 + e + 1 + 1/e = 11.4752: 2 - ln 11.4752 = -0.4402. At 0.6 the logits
  # are 3.3333, 1.6667, 0, -1.6667, and the sum 34.5189: -0.2081.
  @parameterized.parameters((1.0, -0.4402), (0.6, -0.2081))
  def test_it_is_that_of_the_tempered_softmax(self, temperature, expected):
    tokens, logp = _draw(
      [2, 1, 0, -1], _keys(samples=64), temperature=temperature
    )
    self.assertIn(0, tokens)
    np.testing.assert_allclose(logp[tokens == 0], expected, atol=5e-5)

  @parameterized.parameters(0.6, 1.0, 2.5)
  def test_it_is_that_of_the_token_which_was_drawn(self, temperature):
    logits = np.array([2.0, 1.0, 0.0, -1.0])
    tokens, logp = _draw(logits, _keys(samples=64), temperature=temperature)
    self.assertGreater(len(set(tokens.tolist())), 2)
    z = logits / temperature
    expected = z - np.log(np.exp(z).sum())
    np.testing.assert_allclose(logp, expected[tokens], atol=tolerances.F32_LOGP)

  @parameterized.parameters(
    dict(top_k=2), dict(top_p=0.8), dict(min_p=0.3), dict(top_k=1, top_p=0.1)
  )
  def test_a_filter_changes_no_log_prob(self, **filters):
    logits = np.array([2.0, 1.0, 0.0, -1.0])
    tokens, logp = _draw(logits, _keys(samples=64), temperature=0.6, **filters)
    self.assertLess(tokens.max(), 2)
    # At 0.6: 3.3333 and 1.6667 of a sum whose logarithm is 3.5415.
    expected = np.array([-0.2081, -1.8748])
    np.testing.assert_allclose(logp, expected[tokens], atol=1e-4)


class ChoiceTest(absltest.TestCase):
  def test_filters_that_are_not_given_are_off(self):
    self.assertEqual(token_choice.Choice(0.7), (0.7, 0, 1.0, 0.0))

  def test_numbers_get_the_types_of_the_slots(self):
    found = token_choice.as_arrays(token_choice.Choice(1, 5, 1, 0))
    self.assertEqual(found, (1, 5, 1, 0))
    self.assertEqual(
      [x.dtype for x in found], ['float32', 'int32', 'float32', 'float32']
    )


class GreedyTest(absltest.TestCase):
  def test_temperature_0_takes_the_likeliest_at_its_probability_at_1(self):
    tokens, logp = _draw([1, 0, 2, -1], _keys(samples=64), temperature=0.0)
    np.testing.assert_array_equal(tokens, 2)
    np.testing.assert_allclose(logp, -0.4402, atol=5e-5)

  def test_of_equals_the_first_is_taken(self):
    tokens, _ = _draw([0, 3, 3, 1], _keys(samples=8), temperature=0.0)
    np.testing.assert_array_equal(tokens, 1)

  def test_filters_change_nothing_of_it(self):
    logits, keys = [1, 0, 2, -1], _keys(samples=8)
    plain = _draw(logits, keys, temperature=0.0)
    found = _draw(logits, keys, temperature=0.0, top_k=3, top_p=0.2, min_p=0.9)
    np.testing.assert_array_equal(found, plain)

  def test_a_neighbours_temperature_changes_nothing(self):
    logits = [2, 1, 0, -1]
    keys = _keys(samples=64)
    mixed = np.tile([0.0, 0.6, 1.0, 2.5], 16)
    tokens, logp = _draw(logits, keys, temperature=mixed)
    for temperature in (0.0, 0.6, 1.0, 2.5):
      one_tokens, one_logp = _draw(logits, keys, temperature=temperature)
      here = mixed == temperature
      np.testing.assert_array_equal(tokens[here], one_tokens[here])
      np.testing.assert_array_equal(logp[here], one_logp[here])


class FrequencyTest(parameterized.TestCase):
  @parameterized.parameters(0.6, 1.0, 2.5)
  def test_tokens_come_as_often_as_softmax_says(self, temperature):
    logits = np.array([2.0, 1.0, 0.0, -1.0, 1.5])
    z = logits / temperature
    p = np.exp(z) / np.exp(z).sum()
    draws = 4000
    tokens, _ = _draw(logits, _keys(samples=draws), temperature=temperature)
    count = np.bincount(tokens, minlength=5)
    sigma = np.sqrt(draws * p * (1 - p))
    np.testing.assert_array_less(np.abs(count - draws * p), 5 * sigma)

  def test_over_token_numbers_too(self):
    # One sample's 4,000 tokens, of 8 equal logits: 500 each, sigma 20.9.
    keys = _keys().repeat(4000, axis=0)
    tokens, _ = _draw(np.zeros(8), keys, token_number=np.arange(4000))
    count = np.bincount(tokens, minlength=8)
    np.testing.assert_array_less(np.abs(count - 500), 105)

  def test_a_token_that_does_not_exist_is_never_drawn(self):
    logits = np.where(np.arange(8) < 5, 0.0, -1e30)
    tokens, logp = _draw(logits, _keys(samples=4000), temperature=2.5)
    self.assertEqual(set(tokens.tolist()), {0, 1, 2, 3, 4})
    np.testing.assert_allclose(logp, -np.log(5), atol=tolerances.F32_LOGP)


class FilteredTest(parameterized.TestCase):
  """Draws against the filtered distribution, computed by sorting."""

  _LOGITS = np.array([2.0, -1.0, 1.0, 0.3, -4.0, 1.5, 0.0, -0.5, 2.2, -2.0])

  def _expected(self, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Returns the probabilities, and how many tokens have one."""
    p = np.exp(self._LOGITS / temperature)
    order = np.argsort(-p)
    order = order[:top_k] if top_k else order
    share = p[order] / p[order].sum()
    order = order[np.cumsum(share) - share < top_p]
    order = order[p[order] >= min_p * p.max()]
    kept = np.where(np.isin(np.arange(len(p)), order), p, 0)
    return kept / kept.sum(), len(order)

  @parameterized.parameters(
    (10, {}),
    (4, dict(top_k=4)),
    (5, dict(top_p=0.9)),
    (4, dict(min_p=0.2)),
    (4, dict(temperature=0.7, top_k=6, top_p=0.95, min_p=0.05)),
    (3, dict(temperature=1.8, top_k=5, top_p=0.9, min_p=0.6)),
  )
  def test_chi_square_of_20_000_draws(self, count, how):
    draws = 20_000
    p, kept = self._expected(**how)
    self.assertEqual(kept, count)
    tokens, _ = _draw(self._LOGITS, _keys(samples=draws), **how)
    observed = np.bincount(tokens, minlength=len(p))
    self.assertEqual(observed[p == 0].sum(), 0)
    expected = draws * p[p > 0]
    chi_square = (np.square(observed[p > 0] - expected) / expected).sum()
    freedom = kept - 1
    # Exceeded by chance once in 8,000 at 2 degrees, more rarely at more.
    self.assertLess(chi_square, freedom + 8 * np.sqrt(2 * freedom))

  def test_slots_of_one_call_are_filtered_each_by_its_own(self):
    slots = 6000
    top_k = np.tile([0, 1, 3], slots // 3)
    top_p = np.tile([1.0, 1.0, 0.5], slots // 3)
    keys = _keys(samples=slots)
    tokens, _ = _draw(self._LOGITS, keys, top_k=top_k, top_p=top_p)
    plain, _ = _draw(self._LOGITS, keys)
    np.testing.assert_array_equal(tokens[::3], plain[::3])
    self.assertEqual(set(tokens[1::3].tolist()), {8})
    # Of 2.2, 2.0 and 1.5 the first has 44%, the first two 80%.
    self.assertEqual(set(tokens[2::3].tolist()), {8, 0})


class BlocksTest(parameterized.TestCase):
  """Vocabularies of several blocks of 256 tokens."""

  @parameterized.parameters(255, 256, 257, 700)
  def test_chi_square_over_blocks(self, count):
    rng = np.random.default_rng(count)
    logits = 1.5 * rng.standard_normal(count)
    p = np.exp(logits) / np.exp(logits).sum()
    draws = 20_000
    tokens, _ = _draw(logits, _keys(samples=draws))
    # Rare tokens are put together, so that 20 are expected of each sort.
    order = np.argsort(p)
    rare = order[np.cumsum(p[order]) * draws < 40]
    sort = np.arange(count)
    sort[rare] = rare[0]
    observed = np.bincount(sort[tokens], minlength=count)
    expected = np.bincount(sort, weights=draws * p, minlength=count)
    there = expected > 0
    gaps = observed[there] - expected[there]
    chi_square = (np.square(gaps) / expected[there]).sum()
    freedom = there.sum() - 1
    self.assertLess(abs(chi_square - freedom), 8 * np.sqrt(2 * freedom))

  @parameterized.parameters(0, 255, 256, 600, 699)
  def test_the_only_token_with_weight_is_drawn(self, only):
    logits = np.where(np.arange(700) == only, 0.0, -1e30)
    tokens, logp = _draw(logits, _keys(samples=64))
    np.testing.assert_array_equal(tokens, only)
    np.testing.assert_array_equal(logp, 0.0)

  def test_the_last_that_may_be_drawn_is_in_an_early_block(self):
    # 700 places, of which 300 are tokens: nothing lies behind them.
    logits = np.where(np.arange(700) < 300, 0.0, -1e30)
    tokens, _ = _draw(logits, _keys(samples=8000))
    self.assertEqual((tokens.min(), tokens.max()), (0, 299))

  @parameterized.parameters(0.0, 1.0)
  def test_of_logits_that_are_not_finite_it_is_a_token(self, temperature):
    for bad in (np.nan, np.inf):
      logits = np.zeros((2, 300))
      logits[0, 290] = bad
      logits[1, 7] = 50.0
      tokens, _ = _draw(logits, _keys(samples=2), temperature=temperature)
      self.assertBetween(tokens[0], 0, 299)
      self.assertEqual(tokens[1], 7)

  def test_draws_are_those_of_two_searches(self):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((32, 600)).astype(np.float32)
    keys = _keys(seed=3, ordinal=8, samples=32)
    found, logp = _draw(logits, keys, token_number=5, temperature=0.7)
    z = logits.astype(np.float64) / 0.7
    for i in range(32):
      key = jax.random.wrap_key_data(keys[i], impl='threefry2x32')
      u = np.asarray(jax.random.uniform(jax.random.fold_in(key, 5), (2,)))
      p = np.pad(np.exp(z[i]), (0, 168)).reshape(3, 256)
      ends = np.cumsum(p.sum(axis=1))
      block = np.searchsorted(ends, u[0] * ends[-1], side='right')
      inside = np.cumsum(p[block])
      place = np.searchsorted(inside, u[1] * inside[-1], side='right')
      self.assertEqual(found[i], 256 * block + place)
    expected = jax.nn.log_softmax(z)[np.arange(32), found]
    np.testing.assert_allclose(logp, expected, atol=tolerances.F32_LOGP)

  def test_recorded_draws(self):
    # A resumed run must find the draws it left.
    logits = np.arange(11) % 4 / 2
    tokens, _ = _draw(logits, _keys(seed=2, ordinal=6, samples=12))
    self.assertEqual(tokens.tolist(), [1, 1, 8, 3, 2, 3, 9, 4, 9, 2, 6, 2])


class CompilationTest(absltest.TestCase):
  def test_values_compile_nothing(self):
    logits, keys = np.arange(7.0), _keys(seed=1, samples=6)
    _draw(logits, keys, temperature=1.0)
    with tiny_engine.compilations() as compiled:
      _draw(logits, keys, temperature=0.0)
      _draw(logits, keys, temperature=0.7, token_number=5)
      _draw(logits, keys, top_k=3, top_p=0.9, min_p=0.1)
      _keys(seed=2, purpose=token_choice.Purpose.EVAL, ordinal=3, samples=6)
    self.assertEmpty(compiled)
    with tiny_engine.compilations() as compiled:
      _draw(np.arange(9.0), keys)
    self.assertNotEmpty(compiled)


class RequestKeysTest(absltest.TestCase):
  def test_they_are_those_of_each_draw(self):
    ordinals = list(range(3, 140))
    found = token_choice.request_keys(
      5, token_choice.Purpose.EVAL, ordinals, samples=3
    )
    for keys, ordinal in zip(found, ordinals, strict=True):
      np.testing.assert_array_equal(
        keys,
        token_choice.sample_keys(
          5, token_choice.Purpose.EVAL, ordinal, samples=3
        ),
      )


class NotANumberTest(absltest.TestCase):
  def test_logits_that_are_none_give_a_token_that_exists(self):
    # 0 is no padding row, as the last of 64 would be.
    token, logp = token_choice.choose(
      jnp.full((2, 64), jnp.nan),
      jnp.zeros((2, 2), jnp.uint32),
      token_number=jnp.zeros(2, jnp.int32),
      choice=jax.tree.map(
        lambda x: jnp.full(2, x),
        token_choice.as_arrays(token_choice.Choice(temperature=1.0)),
      ),
    )
    self.assertEqual(token.tolist(), [0, 0])
    self.assertTrue(np.isnan(logp).all())


if __name__ == '__main__':
  absltest.main()
