"""Tests of `model.hf_weights`."""

import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors.numpy
from absl.testing import absltest, parameterized
from flax import traverse_util

import tiny_model
from dapo_jax.model import hf_weights
from dapo_jax.model import spec as spec_lib

_EMBEDDING = 'model.embed_tokens.weight'
_HEAD = 'lm_head.weight'
_Q = 'model.layers.1.self_attn.q_proj.weight'


class FolderTest(parameterized.TestCase):
  """A test that has a folder of its own."""

  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def save(self, model, params, **options):
    """Saves to the folder and returns the tensors in its file."""
    hf_weights.save(self.folder, model, params, eos_ids=(1,), **options)
    return self.tensors()

  def tensors(self):
    return safetensors.numpy.load_file(self.folder / 'model.safetensors')

  def write(self, tensors, name='model.safetensors'):
    safetensors.numpy.save_file(tensors, self.folder / name)

  def load(self, model, shardings=None):
    return hf_weights.load(self.folder, model, shardings=shardings)

  def assert_same(self, a, b):
    self.assertEqual(jax.tree.structure(a), jax.tree.structure(b))
    jax.tree.map(np.testing.assert_array_equal, a, b)


class RoundTripTest(FolderTest):
  @parameterized.parameters(True, False)
  def test_float32_comes_back_bit_for_bit(self, tied_head):
    model = tiny_model.model(tied_head=tied_head)
    params = tiny_model.params(model)
    self.save(model, params)
    loaded = self.load(model)
    self.assert_same(params, loaded)
    for leaf in jax.tree.leaves(loaded):
      self.assertEqual(leaf.dtype, jnp.float32)

  def test_config_gives_the_spec_back(self):
    model = tiny_model.model(tied_head=False)
    self.save(model, tiny_model.params(model))
    config = hf_weights.read_config(self.folder)
    self.assertEqual(spec_lib.from_hf(config), model.spec)

  def test_rows_beyond_the_vocabulary_are_kept(self):
    model = tiny_model.model(vocab_size=50)
    params = tiny_model.params(model)
    tensors = self.save(model, params)
    self.assertEqual(tensors[_EMBEDDING].shape, (61, 32))
    self.assertEqual(hf_weights.read_config(self.folder)['vocab_size'], 61)
    self.assert_same(params, self.load(model))

  def test_end_tokens_are_written_twice(self):
    model = tiny_model.model()
    hf_weights.save(
      self.folder, model, tiny_model.params(model), eos_ids=(7, 9)
    )
    for name in ('config.json', 'generation_config.json'):
      content = json.loads((self.folder / name).read_text())
      self.assertEqual(content['eos_token_id'], [7, 9])

  def test_half_b_has_290_tensors_72_of_them_biases(self):
    # 24 layers of 12 tensors, embedding, final norm; the head is tied.
    model = tiny_model.model(layers=24)
    names = self.save(model, tiny_model.params(model)).keys()
    self.assertLen(names, 290)
    self.assertLen([n for n in names if n.endswith('.bias')], 72)
    self.assertEmpty([n for n in names if n.endswith('o_proj.bias')])

  def test_the_file_is_as_readable_as_its_config(self):
    model = tiny_model.model()
    self.save(model, tiny_model.params(model))
    config, weights = (
      (self.folder / name).stat().st_mode
      for name in ('config.json', 'model.safetensors')
    )
    self.assertEqual(config, weights)


class DtypeTest(FolderTest):
  def test_bfloat16_keeps_its_bits(self):
    # NaN, -0, a denormal of bfloat16 near 1e-40, 1, and 1 + 2^-8: a tie, to
    # even.
    values = np.array([np.nan, -0.0, 1e-40, 1.0, 1 + 2**-8], np.float32)
    model = tiny_model.model()
    params = tiny_model.params(model)
    params['embedding'] = (
      jax.device_put(np.asarray(params['embedding']).copy())
      .at[0, :5]
      .set(jnp.asarray(values))
    )
    row = self.save(model, params, dtype='bfloat16')[_EMBEDDING][0, :5]
    self.assertEqual(row.dtype, ml_dtypes.bfloat16)
    # 1e-40 is 1.09 times 2^-133, the least denormal: 1.
    np.testing.assert_array_equal(
      row.view(np.uint16), [0x7FC0, 0x8000, 0x0001, 0x3F80, 0x3F80]
    )
    loaded = np.asarray(self.load(model)['embedding'])[0, :5]
    np.testing.assert_array_equal(
      loaded.view(np.uint32), row.view(np.uint16).astype(np.uint32) << 16
    )

  @parameterized.parameters(('float32', 4), ('bfloat16', 2))
  def test_file_size_and_config_agree_with_the_dtype(self, dtype, bytes_each):
    model = tiny_model.model()
    params = tiny_model.params(model)
    tensors = self.save(model, params, dtype=dtype)
    self.assertEqual({t.dtype.name for t in tensors.values()}, {dtype})
    self.assertEqual(hf_weights.read_config(self.folder)['torch_dtype'], dtype)
    weights = sum(leaf.size for leaf in jax.tree.leaves(params)) * bytes_each
    size = (self.folder / 'model.safetensors').stat().st_size
    self.assertBetween(size, weights, weights + 4096)  # the file's own header

  @parameterized.parameters(ml_dtypes.bfloat16, np.float16)
  def test_half_precision_is_read_exactly(self, dtype):
    model = tiny_model.model()
    params = tiny_model.params(model)
    tensors = self.save(model, params)
    self.write({name: t.astype(dtype) for name, t in tensors.items()})
    rounded = jax.tree.map(
      lambda x: np.asarray(x).astype(dtype).astype(np.float32), params
    )
    self.assert_same(rounded, self.load(model))

  def test_another_dtype_is_refused(self):
    model = tiny_model.model()
    with self.assertRaisesRegex(ValueError, "float32, bfloat16; found 'int8'"):
      self.save(model, tiny_model.params(model), dtype='int8')


class FaultsTest(FolderTest):
  def test_every_fault_is_listed_in_one_error(self):
    model = tiny_model.model()
    tensors = self.save(model, tiny_model.params(model))
    del tensors['model.norm.weight']
    tensors['model.layers.0.self_attn.o_proj.bias'] = np.zeros(32, np.float32)
    tensors[_Q] = tensors[_Q].T
    bias = 'model.layers.0.self_attn.k_proj.bias'
    tensors[bias] = tensors[bias].astype(np.int8)
    self.write({name: np.ascontiguousarray(t) for name, t in tensors.items()})
    with self.assertRaises(ValueError) as caught:
      self.load(model)
    first, *faults = str(caught.exception).split('\n')
    self.assertIn('--config.model.path', first)
    self.assertCountEqual(
      [fault.strip() for fault in faults],
      [
        'missing: model.norm.weight [32]',
        'unknown: model.layers.0.self_attn.o_proj.bias',
        # N H = 4 * 12 = 48.
        f'shape of {_Q}: expected [48, 32], found [32, 48]',
        f'type of {bias}: expected F32 or BF16 or F16, found I8',
      ],
    )

  def test_a_deeper_file_is_refused(self):
    self.save(*self._model_and_params(layers=3))
    with self.assertRaisesRegex(ValueError, 'unknown: model.layers.2.'):
      self.load(tiny_model.model(layers=2))

  def _model_and_params(self, **changes):
    model = tiny_model.model(**changes)
    return model, tiny_model.params(model)

  def test_an_empty_folder_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'no model.safetensors and no'):
      self.load(tiny_model.model())
    with self.assertRaisesRegex(ValueError, 'config.json does not exist'):
      hf_weights.read_config(self.folder)

  def test_a_cut_off_file_is_refused_by_name(self):
    self.save(*self._model_and_params())
    path = self.folder / 'model.safetensors'
    path.write_bytes(path.read_bytes()[:-100])
    with self.assertRaisesRegex(ValueError, 'model.safetensors is broken'):
      self.load(tiny_model.model())


class ConfigTest(FolderTest):
  @parameterized.parameters(b'', b'{"vocab_size": 6', b'[]', b'null', b'\xff')
  def test_a_broken_one_is_told(self, content):
    self.folder.mkdir(exist_ok=True)
    (self.folder / 'config.json').write_bytes(content)
    with self.assertRaisesRegex(ValueError, r'/config\.json is broken: '):
      hf_weights.read_config(self.folder)


class TiedHeadTest(FolderTest):
  def setUp(self):
    super().setUp()
    self.model = tiny_model.model(tied_head=True)
    self.params = tiny_model.params(self.model)
    self.written = self.save(self.model, self.params)

  def test_it_is_not_written(self):
    self.assertNotIn(_HEAD, self.written)

  def test_an_equal_head_is_accepted(self):
    self.write(self.written | {_HEAD: self.written[_EMBEDDING]})
    self.assert_same(self.params, self.load(self.model))

  def test_a_different_head_is_refused(self):
    head = self.written[_EMBEDDING].copy()
    head[60, 31] += 1
    self.write(self.written | {_HEAD: head})
    with self.assertRaisesRegex(ValueError, f'{_HEAD} differs from'):
      self.load(self.model)

  def test_an_untied_model_needs_a_head(self):
    with self.assertRaisesRegex(ValueError, f'missing: {_HEAD}'):
      self.load(tiny_model.model(tied_head=False))


class SeveralFilesTest(FolderTest):
  def setUp(self):
    super().setUp()
    self.model = tiny_model.model()
    self.params = tiny_model.params(self.model)
    tensors = self.save(self.model, self.params)
    (self.folder / 'model.safetensors').unlink()
    names = sorted(tensors)
    self.parts = {
      f'model-{i + 1}-of-2.safetensors': {n: tensors[n] for n in names[i::2]}
      for i in range(2)
    }
    for file, part in self.parts.items():
      self.write(part, file)
    index = {name: file for file, part in self.parts.items() for name in part}
    (self.folder / 'model.safetensors.index.json').write_text(
      json.dumps({'metadata': {}, 'weight_map': index})
    )

  def test_they_are_read_as_one(self):
    self.assert_same(self.params, self.load(self.model))

  def test_a_missing_file_is_named(self):
    (self.folder / 'model-2-of-2.safetensors').unlink()
    with self.assertRaisesRegex(
      ValueError, 'no model-2-of-2.safetensors, which model.safetensors.index'
    ):
      self.load(self.model)

  def test_a_tensor_in_two_files_is_refused(self):
    first, second = self.parts
    name = min(self.parts[first])
    self.write(self.parts[second] | {name: self.parts[first][name]}, second)
    with self.assertRaisesRegex(ValueError, f'in two files: {name}'):
      self.load(self.model)


class PlacementTest(FolderTest):
  def test_each_leaf_lies_where_it_was_asked_for(self):
    if jax.device_count() < 8:
      self.skipTest('needs 8 devices, see XLA_FLAGS in tests/conftest.py')
    model = tiny_model.model(tied_head=False, vocab_size=64, vocab_rows=64)
    params = tiny_model.params(model)
    self.save(model, params)
    auto = (jax.sharding.AxisType.Auto,) * 3
    mesh = jax.make_mesh((2, 2, 2), ('a', 'b', 'c'), axis_types=auto)
    # 'c' is not named: parts have replicas. Layers are cut as well.
    rules = {'layers': 'a', 'vocab': 'a', 'embed': 'b'}
    shardings = jax.tree.map(
      lambda axes: jax.NamedSharding(mesh, jax.P(*map(rules.get, axes))),
      model.logical_axes,
      is_leaf=lambda axes: isinstance(axes, tuple),
    )
    loaded = self.load(model, shardings)
    self.assert_same(params, loaded)
    flat = traverse_util.flatten_dict(loaded, sep='/')
    for path, sharding in traverse_util.flatten_dict(
      shardings, sep='/'
    ).items():
      self.assertEqual(flat[path].sharding, sharding, path)
    self.assertEqual(
      flat['block/q'].addressable_shards[0].data.shape, (1, 16, 4, 12)
    )

  def test_one_sharding_may_serve_all(self):
    model = tiny_model.model()
    params = tiny_model.params(model)
    self.save(model, params)
    last = jax.sharding.SingleDeviceSharding(jax.devices()[-1])
    loaded = self.load(model, last)
    self.assert_same(params, loaded)
    for leaf in jax.tree.leaves(loaded):
      self.assertEqual(leaf.sharding, last)


if __name__ == '__main__':
  absltest.main()
