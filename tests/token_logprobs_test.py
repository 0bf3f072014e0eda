"""Tests of `model.token_logprobs`."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_model
import tolerances
from dapo_jax.model import token_logprobs

_ROWS, _LENGTH, _EMBED, _VOCAB = 2, 13, 8, 29


def _inputs():
  rng = np.random.default_rng(0)
  hidden = rng.standard_normal((_ROWS, _LENGTH, _EMBED))
  head = rng.standard_normal((_EMBED, _VOCAB)) / 3
  targets = rng.integers(_VOCAB, size=(_ROWS, _LENGTH))
  return (
    jnp.asarray(hidden, jnp.float32),
    jnp.asarray(head, jnp.float32),
    jnp.asarray(targets, jnp.int32),
  )


def _of_logits(logits, target, *, temperature):
  """Returns (logp, entropy) of one token whose logits are these."""
  out = token_logprobs.token_logprobs(
    jnp.asarray(logits, jnp.float32)[None, None],
    jnp.full((1, 1), target),
    wanted=jnp.ones_like(jnp.full((1, 1), target), bool),
    logits=lambda hidden: hidden,
    temperature=temperature,
    chunk_tokens=1,
    entropy=True,
  )
  return out.logp.item(), out.entropy.item()


def _loss(hidden, head, targets, *, chunk_tokens, split_vocab=False):
  """Returns a scalar in which every logp and entropy has its own weight."""
  out = token_logprobs.token_logprobs(
    hidden,
    targets,
    wanted=jnp.ones_like(targets, bool),
    logits=lambda h: h @ head,
    temperature=0.6,
    chunk_tokens=chunk_tokens,
    entropy=True,
    split_vocab=split_vocab,
  )
  weight = jnp.cos(jnp.arange(out.logp.size)).reshape(out.logp.shape)
  return jnp.sum(weight * (out.logp + 0.1 * out.entropy)), out


class TokenLogprobsTest(parameterized.TestCase):
  # exp(2, 1, 0, -1) sum to 11.4752; 2 - ln 11.4752 = -0.4402. Divided by 0.6:
  # 3.3333 - ln(28.0316 + 5.2945 + 1 + 0.1889) = 3.3333 - 3.5414 = -0.2081.
  @parameterized.parameters((1.0, -0.4402), (0.6, -0.2081))
  def test_temperature_divides_the_logits(self, temperature, expected):
    logp, _ = _of_logits([2, 1, 0, -1], 0, temperature=temperature)
    self.assertAlmostEqual(logp, expected, delta=5e-5)

  def test_a_uniform_choice_has_entropy_ln_v(self):
    _, entropy = _of_logits(np.full(50, 3.0), 7, temperature=0.6)
    self.assertAlmostEqual(entropy, np.log(50), delta=tolerances.F32_ATOL)

  def test_a_certain_choice_has_entropy_0(self):
    logp, entropy = _of_logits([200, 0, 0], 0, temperature=1.0)
    self.assertEqual((logp, entropy), (0.0, 0.0))

  # 2 rows of 13 tokens, 1 or 7 // 2 = 3 of them at a time; 3 leaves a rest.
  @parameterized.parameters((1, False), (7, False), (7, True))
  def test_chunks_change_neither_values_nor_gradients(
    self, chunk_tokens, split_vocab
  ):
    hidden, head, targets = _inputs()
    loss = jax.value_and_grad(_loss, argnums=(0, 1), has_aux=True)
    (_, whole), whole_grads = loss(hidden, head, targets, chunk_tokens=999)
    (_, out), grads = loss(
      hidden, head, targets, chunk_tokens=chunk_tokens, split_vocab=split_vocab
    )
    self.assertEqual(out.logp.shape, targets.shape)
    for a, b in zip(whole, out, strict=True):
      np.testing.assert_allclose(
        a, b, atol=tolerances.F32_LOGP, rtol=tolerances.F32_LOGP
      )
    for a, b in zip(whole_grads, grads, strict=True):
      gap = np.linalg.norm(a - b) / np.linalg.norm(a)
      self.assertLessEqual(gap, tolerances.F32_GRAD_REL)

  def test_equals_a_log_softmax_in_double_precision(self):
    hidden, head, targets = _inputs()
    z = np.asarray(hidden, np.float64) @ np.asarray(head, np.float64) / 0.6
    logp = z - np.log(np.exp(z).sum(-1, keepdims=True))
    _, out = _loss(hidden, head, targets, chunk_tokens=8)
    np.testing.assert_allclose(
      out.logp,
      np.take_along_axis(logp, np.asarray(targets)[..., None], -1)[..., 0],
      atol=tolerances.F32_ATOL,
    )
    np.testing.assert_allclose(
      out.entropy, -(np.exp(logp) * logp).sum(-1), atol=tolerances.F32_ATOL
    )

  def test_entropy_is_left_out_unless_asked_for(self):
    hidden, head, targets = _inputs()
    out = token_logprobs.token_logprobs(
      hidden,
      targets,
      wanted=jnp.ones_like(targets, bool),
      logits=lambda h: h @ head,
      temperature=0.6,
      chunk_tokens=8,
      entropy=False,
    )
    self.assertIsNone(out.entropy)
    _, both = _loss(hidden, head, targets, chunk_tokens=8)
    np.testing.assert_array_equal(out.logp, both.logp)

  def test_memory_falls_with_the_chunk(self):
    hidden = jnp.zeros((1, 512, _EMBED))
    head = jnp.zeros((_EMBED, 4096))
    targets = jnp.zeros((1, 512), int)

    def temp_bytes(chunk_tokens):
      step = jax.grad(
        lambda *a: _loss(*a, chunk_tokens=chunk_tokens)[0], argnums=(0, 1)
      )
      compiled = jax.jit(step).lower(hidden, head, targets).compile()
      return compiled.memory_analysis().temp_size_in_bytes

    whole, parts = temp_bytes(512), temp_bytes(32)
    # All logits at once are 512 * 4096 * 4 = 8 MiB, a chunk of them 1/2 MiB.
    self.assertGreater(whole, 8 * 2**20)
    self.assertLess(parts, whole / 4)


class PaddedVocabularyTest(parameterized.TestCase):
  """Rows of the embedding that stand for no token."""

  def setUp(self):
    super().setUp()
    model = tiny_model.model(vocab_size=50, vocab_rows=61)
    self.params = tiny_model.params(model)
    self.module = tiny_model.module(model, self.params)
    hidden = np.random.default_rng(1).standard_normal((1, 6, 32))
    self.hidden = jnp.asarray(hidden, jnp.float32)

  def _logprobs(self, targets):
    return token_logprobs.token_logprobs(
      self.hidden,
      jnp.asarray(targets, jnp.int32)[None],
      wanted=jnp.ones_like(jnp.asarray(targets, jnp.int32)[None], bool),
      logits=self.module.logits,
      temperature=0.6,
      chunk_tokens=4,
      entropy=True,
    )

  def test_they_have_probability_0(self):
    out = self._logprobs([50, 51, 55, 58, 59, 60])
    np.testing.assert_array_equal(np.exp(out.logp), np.zeros((1, 6)))

  def test_the_softmax_leaves_them_out(self):
    head = np.asarray(self.params['embedding'], np.float64)[:50]
    z = np.asarray(self.hidden, np.float64) @ head.T / 0.6
    logp = z - np.log(np.exp(z).sum(-1, keepdims=True))
    out = self._logprobs([0, 1, 2, 30, 48, 49])
    np.testing.assert_allclose(
      out.logp[0],
      logp[0, np.arange(6), [0, 1, 2, 30, 48, 49]],
      atol=tolerances.F32_ATOL,
    )
    np.testing.assert_allclose(
      out.entropy, -(np.exp(logp) * logp).sum(-1), atol=tolerances.F32_ATOL
    )

  def test_gradients_are_finite(self):
    def loss(hidden):
      out = token_logprobs.token_logprobs(
        hidden,
        jnp.zeros((1, 6), jnp.int32),
        wanted=jnp.ones_like(jnp.zeros((1, 6), jnp.int32), bool),
        logits=self.module.logits,
        temperature=0.6,
        chunk_tokens=4,
        entropy=True,
      )
      return jnp.sum(out.logp + out.entropy)

    self.assertTrue(np.isfinite(jax.grad(loss)(self.hidden)).all())


class WantedTest(absltest.TestCase):
  """Only the wanted places cost anything, and only they have a result."""

  def test_the_wanted_are_as_they_are_among_all(self):
    hidden, head, targets = _inputs()
    wanted = jnp.asarray(np.random.default_rng(1).random(targets.shape) < 0.4)

    def of(wanted, chunk_tokens):
      def loss(hidden, head):
        out = token_logprobs.token_logprobs(
          hidden,
          targets,
          wanted=wanted,
          logits=lambda h: h @ head,
          temperature=0.6,
          chunk_tokens=chunk_tokens,
          entropy=True,
        )
        part = jnp.where(wanted_once, out.logp + 0.1 * out.entropy, 0.0)
        return jnp.sum(
          part * jnp.cos(jnp.arange(part.size)).reshape(part.shape)
        ), out

      return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(
        hidden, head
      )

    wanted_once = wanted
    (_, whole), whole_grads = of(jnp.ones_like(wanted), 1000)
    for chunk_tokens in (2, 6, 1000):
      (_, out), grads = of(wanted, chunk_tokens)
      np.testing.assert_array_equal(out.logp == 0, ~wanted)
      np.testing.assert_array_equal(out.entropy == 0, ~wanted)
      np.testing.assert_allclose(
        out.logp, jnp.where(wanted, whole.logp, 0), atol=tolerances.F32_ATOL
      )
      for a, b in zip(grads, whole_grads, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerances.F32_ATOL)

  def test_nothing_is_sorted_and_no_places_are_added_up(self):
    # Both are slow on a TPU, and take long to compile for one.
    step = jax.grad(functools.partial(_loss, split_vocab=True), has_aux=True)
    program = jax.make_jaxpr(functools.partial(step, chunk_tokens=6))
    names = set(re.findall(r' = ([a-z-]+)\[', str(program(*_inputs()))))
    self.assertIn('gather', names)
    self.assertNoCommonElements(names, {'sort', 'scatter', 'scatter-add'})

  def test_a_place_that_is_not_wanted_may_hold_anything(self):
    hidden, head, targets = _inputs()
    wanted = jnp.arange(targets.size).reshape(targets.shape) % 3 == 0
    out = token_logprobs.token_logprobs(
      jnp.where(wanted[..., None], hidden, jnp.nan),
      targets,
      wanted=wanted,
      logits=lambda h: h @ head,
      temperature=1.0,
      chunk_tokens=4,
      entropy=True,
    )
    self.assertTrue(bool(jnp.all(jnp.isfinite(out.logp))))

  def test_chunks_without_a_wanted_place_are_not_computed(self):
    hidden, head, targets = _inputs()
    computed = []

    def logits(h):
      jax.debug.callback(lambda: computed.append(1))
      return h @ head

    for count, chunks in ((0, 0), (1, 1), (_LENGTH, _LENGTH)):
      computed.clear()
      wanted = jnp.broadcast_to(jnp.arange(_LENGTH) < count, targets.shape)
      out = token_logprobs.token_logprobs(
        hidden,
        targets,
        wanted=wanted,
        logits=logits,
        temperature=1.0,
        chunk_tokens=_ROWS,
        entropy=False,
      )
      jax.block_until_ready(out.logp)
      jax.effects_barrier()
      self.assertLen(computed, chunks)


if __name__ == '__main__':
  absltest.main()
