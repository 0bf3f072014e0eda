"""The model and the sampler against transformers, family by family."""

import pathlib
import tempfile

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_model
import tolerances
from dapo_jax.model import decoder, hf_weights
from dapo_jax.model import spec as spec_lib
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import engine as engine_lib
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import scheduler, token_choice

try:
  import torch
  import transformers

  torch.set_num_threads(1)
except ImportError:
  torch = transformers = None

_FAMILIES = sorted(tiny_model.FAMILIES)
_LIMITS = limits_lib.Limits(slots=4, prompt_tokens=12, response_tokens=90)

# Models of transformers' own making: the prefix of their classes, and what
# their config says beside what all of these do.
_THEIRS = {
  'qwen2': ('Qwen2', {}),
  'qwen3': ('Qwen3', {'head_dim': 12}),
  'llama': (
    'Llama',
    {
      'rope_parameters': {
        'rope_type': 'llama3',
        'rope_theta': 5000.0,
        'factor': 8.0,
        'low_freq_factor': 1.0,
        'high_freq_factor': 4.0,
        'original_max_position_embeddings': 64,
      }
    },
  ),
  'smollm2': (
    'Llama',
    {'hidden_size': 36, 'num_attention_heads': 3, 'num_key_value_heads': 1},
  ),
  'mistral': ('Mistral', {'sliding_window': 24}),
  'mistral_without_window': ('Mistral', {'sliding_window': None}),
}
_THEIR_SHAPE = dict(
  vocab_size=61,
  hidden_size=32,
  intermediate_size=40,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  max_position_embeddings=512,
  rope_parameters={'rope_type': 'default', 'rope_theta': 5000.0},
  initializer_range=0.2,
)


def _tokens(length):
  return np.random.default_rng(0).integers(61, size=(2, length))


def _our_logits(model, params, tokens, *, positions=None):
  hidden = tiny_model.hidden(model, params, tokens, positions=positions)
  return np.asarray(tiny_model.module(model, params).logits(hidden))


def _their_logits(model, tokens, *, positions=None):
  if positions is not None:
    positions = torch.tensor(positions)
  with torch.no_grad():
    logits = model(
      input_ids=torch.tensor(tokens), position_ids=positions
    ).logits
  return logits.float().numpy()


@absltest.skipIf(torch is None, 'needs torch and transformers')
class TransformersTest(parameterized.TestCase):
  """Weights have no zeros: biases and norms count."""

  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def _save(self, model, params, *, eos_ids=(1,)):
    hf_weights.save(self.folder, model, params, eos_ids=eos_ids)

  def _read_back(self, *, dtype='float32'):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
      self.folder, output_loading_info=True, dtype=getattr(torch, dtype)
    )
    for fault in ('missing_keys', 'unexpected_keys', 'mismatched_keys'):
      self.assertEmpty(report[fault], fault)
    return model.eval()

  def _assert_near(self, ours, theirs):
    self.assertGreater(ours.std(), 0.5)
    np.testing.assert_allclose(ours, theirs, atol=tolerances.PARITY_F32, rtol=0)


class SavedHereTest(TransformersTest):
  @parameterized.parameters(_FAMILIES)
  def test_logits_of_2000_tokens_are_theirs(self, family):
    model = tiny_model.model(**tiny_model.FAMILIES[family])
    params = tiny_model.params(model)
    self._save(model, params)
    ours = _our_logits(model, params, _tokens(2000))
    self._assert_near(ours, _their_logits(self._read_back(), _tokens(2000)))

  def test_an_untied_head_far_from_the_start_gives_theirs(self):
    model = tiny_model.model(tied_head=False)
    params = tiny_model.params(model)
    self._save(model, params)
    far = np.tile(4000 + np.arange(300), (2, 1))
    self._assert_near(
      _our_logits(model, params, _tokens(300), positions=far),
      _their_logits(self._read_back(), _tokens(300), positions=far),
    )

  @parameterized.parameters(_FAMILIES)
  def test_in_bfloat16_they_are_near(self, family):
    changes = tiny_model.FAMILIES[family]
    model = tiny_model.model(compute_dtype='bfloat16', **changes)
    params = tiny_model.params(model)
    self._save(model, params)
    rms = lambda x: np.sqrt(np.mean(x**2))
    ours = _our_logits(model, params, _tokens(2000))
    exact = _their_logits(self._read_back(), _tokens(2000))
    rounded = _their_logits(self._read_back(dtype='bfloat16'), _tokens(2000))
    self.assertLess(rms(ours - exact) / rms(exact), tolerances.BF16)
    self.assertLess(rms(ours - rounded) / rms(exact), tolerances.PARITY_BF16)

  @parameterized.parameters(_FAMILIES)
  def test_the_sampler_says_their_log_probabilities(self, family):
    model = tiny_model.model(**tiny_model.FAMILIES[family])
    params = tiny_model.params(model)
    self._save(model, params)
    theirs = self._read_back()
    prompt = _tokens(11)[0].astype(np.int32)
    for response in _sample(model, params, prompt):
      # A prompt of 11 and 90 tokens: beyond Mistral's window of 24 and the
      # 64 tokens before Llama's stretching.
      self.assertLen(response.tokens, _LIMITS.response_tokens)
      row = np.concatenate([prompt, response.tokens])[None]
      logits = torch.tensor(_their_logits(theirs, row)[0, 10:-1])
      logp = torch.log_softmax(logits, dim=-1).numpy()
      np.testing.assert_allclose(
        response.logp,
        np.take_along_axis(logp, response.tokens[:, None], axis=-1)[:, 0],
        atol=tolerances.PARITY_F32,
        rtol=0,
      )

  @parameterized.parameters(24, None)
  def test_they_read_the_window(self, window_tokens):
    changes = tiny_model.FAMILIES['mistral'] | {'window_tokens': window_tokens}
    model = tiny_model.model(**changes)
    self._save(model, tiny_model.params(model))
    config = transformers.AutoConfig.from_pretrained(self.folder)
    self.assertEqual(config.sliding_window, window_tokens)

  def test_their_generation_stops_at_our_end_tokens(self):
    model = tiny_model.model()
    self._save(model, tiny_model.params(model), eos_ids=(7, 9))
    config = transformers.GenerationConfig.from_pretrained(self.folder)
    self.assertEqual(config.eos_token_id, [7, 9])


class _Tokenizer:
  """Text plays no part here; no token ends a response."""

  vocab_size = 61
  eos_ids = ()
  pad_id = 0

  def encode(self, text):
    raise NotImplementedError

  def decode(self, ids):
    raise NotImplementedError


def _sample(model, params, prompt):
  """Returns 4 responses at temperature 1 that no token ends."""
  engine = engine_lib.Engine(
    model, _Tokenizer(), mesh_lib.local_mesh(), _LIMITS, seed=0
  )
  sampling = scheduler.Sampling(
    purpose=token_choice.Purpose.TRAIN,
    seed=0,
    choice=token_choice.Choice(temperature=1.0),
    limit_tokens=_LIMITS.response_tokens,
    chunk_tokens=_LIMITS.response_tokens,
  )
  request = scheduler.Request(0, prompt, _LIMITS.slots)
  ((_, responses),) = scheduler.generate(
    engine, params, [request], sampling, report=lambda _: None
  )
  return responses


class SavedThereTest(TransformersTest):
  def _save_theirs(self, family, *, tied_head, shards):
    """Returns transformers' model, after it saved itself."""
    prefix, changes = _THEIRS[family]
    config = getattr(transformers, f'{prefix}Config')(
      **_THEIR_SHAPE | changes, tie_word_embeddings=tied_head
    )
    torch.manual_seed(0)
    model = getattr(transformers, f'{prefix}ForCausalLM')(config).eval()
    with torch.no_grad():
      for name, weight in model.named_parameters():
        if name.endswith('bias'):
          weight.normal_()
        elif 'norm' in name:
          weight.normal_(mean=1.0, std=0.2)
    size = sum(w.numel() for w in model.parameters()) * 4
    model.save_pretrained(self.folder, max_shard_size=size // shards + 4096)
    self.assertEqual(
      (self.folder / 'model.safetensors.index.json').exists(), shards > 1
    )
    return model

  @parameterized.parameters(
    ('qwen2', True, 1),
    ('qwen2', False, 3),
    ('qwen3', True, 1),
    ('llama', False, 1),
    ('smollm2', True, 1),
    ('mistral', False, 1),
    ('mistral_without_window', False, 1),
  )
  def test_their_logits_are_had_here(self, family, tied_head, shards):
    theirs = self._save_theirs(family, tied_head=tied_head, shards=shards)
    spec = spec_lib.from_hf(hf_weights.read_config(self.folder))
    # Logits of 300 tokens can't tell a window of 4,096, their default.
    window_tokens = _THEIRS[family][1].get('sliding_window')
    self.assertEqual(spec.window_tokens, window_tokens)
    model = decoder.abstract(spec, compute_dtype='float32', remat='none')
    params = hf_weights.load(self.folder, model, shardings=None)
    self._assert_near(
      _our_logits(model, params, _tokens(300)),
      _their_logits(theirs, _tokens(300)),
    )


class WhatMattersTest(parameterized.TestCase):
  """Parity says nothing of a part that changes nothing."""

  def _logits(self, params, **changes):
    return _our_logits(tiny_model.model(**changes), params, _tokens(300))

  @parameterized.parameters('q_bias', 'k_bias', 'v_bias', 'q_norm', 'k_norm')
  def test_every_bias_and_norm_does(self, name):
    family = 'qwen3' if name.endswith('norm') else 'qwen2'
    model = tiny_model.model(**tiny_model.FAMILIES[family])
    params = tiny_model.params(model)
    neutral = jnp.ones_like if name.endswith('norm') else jnp.zeros_like
    block = params['block'] | {name: neutral(params['block'][name])}
    with_it = _our_logits(model, params, _tokens(300))
    without = _our_logits(model, params | {'block': block}, _tokens(300))
    self.assertGreater(np.abs(with_it - without).max(), 0.1)

  @parameterized.parameters(
    ('llama', dict(rope_scaling=None)), ('mistral', dict(window_tokens=None))
  )
  def test_stretching_and_window_do(self, family, off):
    changes = tiny_model.FAMILIES[family]
    params = tiny_model.params(tiny_model.model(**changes))
    gap = self._logits(params, **changes) - self._logits(
      params, **changes | off
    )
    self.assertGreater(np.abs(gap).max(), 0.1)


if __name__ == '__main__':
  absltest.main()
