"""Tests of `model.decoding`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_model
import tolerances
from dapo_jax.model import decoder, decoding, kv_cache, paged_cache

_PROMPTS = ([5, 7, 9], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 58])


def _tokens(*shape, seed=0):
  return np.random.default_rng(seed).integers(61, size=shape)


# Compiled once for all tests of a shape.
@functools.partial(jax.jit, static_argnums=0)
def _prefill(graphdef, params, rows):
  return decoding.prefill(*decoding.bind(graphdef, params), rows)


@functools.partial(jax.jit, static_argnums=0)
def _step(graphdef, params, tokens, cache, positions):
  module, layers = decoding.bind(graphdef, params)
  hidden, cache = decoding.dense(
    module, layers, tokens, cache, positions=positions
  )
  return hidden, jax.nn.log_softmax(module.logits(hidden)), cache


class DenseTest(parameterized.TestCase):
  def _decode(
    self, prompts, *, steps, replies=None, dtype='float32', **changes
  ):
    """Returns (tokens, logp of all tokens, hidden) after each given token.

    Prompts are padded to 11 tokens and prefilled; then each slot's last
    prompt token is decoded, and after it the reply, or else the likeliest.
    """
    model = tiny_model.model(compute_dtype=dtype, **changes)
    params = tiny_model.params(model)
    slots = len(prompts)
    cache = kv_cache.empty(
      model.spec, slots=slots, cache_tokens=24, dtype=dtype
    )
    rows = np.zeros((slots, 11), np.int32)
    for row, prompt in zip(rows, prompts, strict=True):
      row[: len(prompt)] = prompt
    k, v = _prefill(model.graphdef, params, jnp.asarray(rows))
    for i in range(slots):
      cache = kv_cache.insert(cache, k[:, i], v[:, i], slots=jnp.array([i]))

    tokens = jnp.array([prompt[-1] for prompt in prompts])
    positions = jnp.array([len(prompt) - 1 for prompt in prompts])
    out = []
    for t in range(steps):
      hidden, logp, cache = _step(
        model.graphdef, params, tokens, cache, positions
      )
      out.append((logp.argmax(-1), logp, hidden))
      given = replies is not None and t < replies.shape[1]
      tokens = jnp.asarray(replies[:, t]) if given else out[-1][0]
      positions += 1
    return tuple(np.stack(part, axis=1) for part in zip(*out, strict=True))

  def _whole_rows(self, prompts, replies, *, dtype='float32', **changes):
    """Returns (logp of all tokens, hidden) from each last prompt token on."""
    model = tiny_model.model(compute_dtype=dtype, **changes)
    params = tiny_model.params(model)
    rows = np.zeros((len(prompts), 17), np.int32)
    for row, prompt, reply in zip(rows, prompts, replies, strict=True):
      row[: len(prompt)] = prompt
      row[len(prompt) :][: len(reply)] = reply
    hidden = tiny_model.hidden(model, params, rows)
    hidden = jnp.stack(
      [h[len(p) - 1 :][:7] for h, p in zip(hidden, prompts, strict=True)]
    )
    logits = tiny_model.module(model, params).logits(hidden)
    return jax.nn.log_softmax(logits), hidden

  # A window of 4: it ends inside the prompts and inside the replies.
  @parameterized.parameters(
    {}, {'qk_norm': True, 'qkv_bias': False}, {'window_tokens': 4}
  )
  def test_step_by_step_equals_whole_rows(self, **changes):
    replies = _tokens(2, 6)
    _, logp, hidden = self._decode(
      _PROMPTS, steps=7, replies=replies, **changes
    )
    row_logp, row_hidden = self._whole_rows(_PROMPTS, replies, **changes)
    np.testing.assert_allclose(hidden, row_hidden, atol=tolerances.F32_ATOL)
    np.testing.assert_allclose(logp, row_logp, atol=tolerances.DECODE_LOGP)

  def test_in_bfloat16_it_is_near_whole_rows(self):
    replies = _tokens(2, 6)
    _, logp, _ = self._decode(
      _PROMPTS, steps=6, replies=replies, dtype='bfloat16'
    )
    row_logp, _ = self._whole_rows(_PROMPTS, replies, dtype='bfloat16')
    gap = np.take_along_axis(
      logp - np.asarray(row_logp)[:, :6], replies[..., None], axis=-1
    )
    self.assertLess(np.sqrt(np.mean(gap**2)), tolerances.DECODE_LOGP_BF16_RMS)

  def test_a_batch_of_lengths_decodes_as_each_prompt_alone(self):
    together, _, _ = self._decode(_PROMPTS, steps=12)
    for i, prompt in enumerate(_PROMPTS):
      alone, _, _ = self._decode([prompt], steps=12)
      np.testing.assert_array_equal(together[i], alone[0])


class BindTest(parameterized.TestCase):
  @parameterized.parameters(False, True)
  def test_layers_are_the_same_stacked_or_each_by_itself(self, in_parts):
    model = tiny_model.model()
    params = tiny_model.params(model)
    rows = jnp.asarray(_tokens(1, 8))
    nothing = jnp.zeros((2, 1, 8, 2, 12))

    @functools.partial(jax.jit, static_argnums=0)
    def run(graphdef, params):
      bound = decoding.bind(graphdef, params)
      if not in_parts:
        return decoding.prefill(*bound, rows)
      first = decoding.prefill_part(
        *bound, rows[:, :4], (nothing, nothing), begin=jnp.int32(0)
      )
      return decoding.prefill_part(
        *bound, rows[:, 4:], first, begin=jnp.int32(4)
      )

    stacked = run(model.graphdef, params)
    apart = run(
      model.graphdef, decoder.for_sampling(model, params, stacked=False)
    )
    for a, b in zip(stacked, apart, strict=True):
      np.testing.assert_allclose(a, b, atol=tolerances.F32_ATOL)


class PagedTest(parameterized.TestCase):
  @parameterized.parameters({}, {'window_tokens': 4})
  def test_it_decodes_as_whole_rows_do(self, **changes):
    model = tiny_model.model(**changes)
    params = tiny_model.params(model)
    module, layers = decoding.bind(model.graphdef, params)
    tokens = jnp.asarray(_tokens(2, 9, seed=1))
    dense = kv_cache.empty(
      model.spec, slots=2, cache_tokens=12, dtype=jnp.float32
    )
    paged = paged_cache.empty(
      model.spec,
      pages=7,
      page_tokens=4,
      table_shape=(2, 3),
      dtype=jnp.float32,
    )
    paged = paged._replace(table=jnp.array([[4, 0, 6], [2, 5, 1]]))
    for t in range(9):
      positions = jnp.full(2, t)
      attend = lambda q, k, v, cache, layer, at=positions: paged_cache.attend(
        q,
        k,
        v,
        cache,
        layer=layer,
        positions=at,
        kernel=False,
        window_tokens=model.spec.window_tokens,
      )
      want, dense = decoding.dense(
        module, layers, tokens[:, t], dense, positions=positions
      )
      got, paged = decoding.paged(
        module,
        layers,
        tokens[:, t],
        paged,
        positions=positions,
        attend=attend,
      )
      np.testing.assert_allclose(got, want, atol=tolerances.F32_ATOL)


if __name__ == '__main__':
  absltest.main()
