"""Tests of `dapo_jax.training.transfer`."""

import contextlib
import io
import json
import pathlib
import tempfile

import jax
import ml_collections
import numpy as np
import safetensors.numpy
from absl.testing import absltest, parameterized

import tiny_model
from configs import base
from dapo_jax.data import tokenizers
from dapo_jax.model import decoder, hf_weights
from dapo_jax.model import spec as spec_lib
from dapo_jax.training import assemble, checkpoint, model_folder, transfer

try:
  import torch
  import transformers

  torch.set_num_threads(1)
except ImportError:
  torch = transformers = None

_TOKENIZER_CONFIG = {'chat_template': 'chat', 'eos_token': '</s>'}
# Two orders of the same sums in float32; weights give logits of about 1.
_LOGITS_F32 = 1e-5


def _params_of(folder):
  """Returns the parameters in a folder."""
  tokenizer = tokenizers.load(folder)
  model = decoder.abstract(
    model_folder.spec(folder, tokenizer), compute_dtype='float32', remat='none'
  )
  where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return model_folder.load(folder, model, shardings=where)


class _FolderTest(parameterized.TestCase):
  """A test with a Hugging Face folder, `self.source`."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.enterContext(contextlib.redirect_stdout(io.StringIO()))
    self.source = self.folder / 'source'

  def _make_source(self, *, dtype='float32', **changes):
    texts = self.folder / 'texts'
    texts.mkdir()
    tokenizers.train_sentencepiece(
      ['1+2=3'], texts / 'tokenizer.model', vocab_size=300
    )
    (texts / 'tokenizer_config.json').write_text(json.dumps(_TOKENIZER_CONFIG))
    (texts / 'generation_config.json').write_text('{"top_k": 5}')
    tokenizer = tokenizers.load(texts)
    self.model = tiny_model.model(vocab_size=265, vocab_rows=320, **changes)
    self.params = tiny_model.params(self.model)
    model_folder.save(
      self.source, self.model, self.params, tokenizer=tokenizer, dtype=dtype
    )

  def _export(self, source, out='out', **options):
    options = {
      'layout': 'hf',
      'dtype': 'f32',
      'max_shard_size': '5GB',
      'model_path': None,
    } | options
    transfer.export_hf(str(source), str(self.folder / out), **options)
    return self.folder / out

  def _import(self, out='imported'):
    out = self.folder / out
    transfer.import_hf(str(self.source), str(out), allow_download=False)
    return out

  def assert_same(self, a, b):
    self.assertEqual(jax.tree.structure(a), jax.tree.structure(b))
    jax.tree.map(np.testing.assert_array_equal, a, b)


class RoundTripTest(_FolderTest):
  @parameterized.product(
    tied_head=(True, False),
    architecture=('Qwen2ForCausalLM', 'LlamaForCausalLM'),
  )
  def test_in_and_out_and_in_is_bit_equal(self, tied_head, architecture):
    self._make_source(
      tied_head=tied_head,
      architecture=architecture,
      qkv_bias=architecture == 'Qwen2ForCausalLM',
    )
    imported = self._import()
    exported = self._export(imported)
    for folder in (imported, exported):
      self.assert_same(self.params, _params_of(folder))
    self.assertEqual(
      hf_weights.read_config(exported), hf_weights.read_config(self.source)
    )
    names = safetensors.numpy.load_file(exported / 'model.safetensors')
    self.assertEqual('lm_head.weight' in names, not tied_head)

  def test_bfloat16_comes_out_as_it_went_in(self):
    self._make_source(dtype='bfloat16')
    exported = self._export(self._import(), dtype='bf16')
    self.assertEqual(
      *(
        (folder / 'model.safetensors').read_bytes()
        for folder in (self.source, exported)
      )
    )
    self.assertEqual(
      hf_weights.read_config(exported)['torch_dtype'], 'bfloat16'
    )

  def test_several_files_hold_the_same(self):
    self._make_source()
    exported = self._export(self.source, max_shard_size='40KB')
    # 30,000 parameters of 4 bytes, and 320 rows of 32 in place of 61.
    files = [*exported.glob('model-*.safetensors')]
    self.assertGreater(len(files), 3)
    self.assertFalse((exported / 'model.safetensors').exists())
    self.assert_same(self.params, _params_of(exported))
    # One tensor is larger than that: the embedding, 320 * 32 * 4 bytes.
    sizes = sorted(file.stat().st_size for file in files)
    self.assertLess(sizes[-2], 40_000 + 4096)

  @parameterized.parameters('hf', 'orbax')
  def test_everything_of_the_tokenizer_goes_along(self, layout):
    self._make_source()
    exported = self._export(self.source, layout=layout)
    self.assertEqual(
      (exported / 'tokenizer.model').read_bytes(),
      (self.source / 'tokenizer.model').read_bytes(),
    )
    read = lambda name: json.loads((exported / name).read_text())
    self.assertEqual(read('tokenizer_config.json'), _TOKENIZER_CONFIG)
    self.assertEqual(
      read('generation_config.json'),
      {'top_k': 5, 'eos_token_id': [1], 'pad_token_id': 0},
    )

  def test_orbax_has_no_safetensors(self):
    self._make_source()
    exported = self._export(self.source, layout='orbax')
    self.assertEmpty([*exported.glob('*.safetensors*')])
    self.assert_same(self.params, _params_of(exported))


@absltest.skipIf(torch is None, 'needs torch and transformers')
class TransformersTest(_FolderTest):
  @parameterized.parameters(('5GB', True), ('40KB', False))
  def test_it_gives_our_logits_there(self, max_shard_size, tied_head):
    self._make_source(tied_head=tied_head)
    exported = self._export(self._import(), max_shard_size=max_shard_size)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
      exported, dtype=torch.float32, output_loading_info=True
    )
    for fault in ('missing_keys', 'unexpected_keys', 'mismatched_keys'):
      self.assertEmpty(report[fault], fault)
    tokens = np.random.default_rng(0).integers(265, size=(2, 40))
    hidden = tiny_model.hidden(self.model, self.params, tokens)
    ours = tiny_model.module(self.model, self.params).logits(hidden)
    with torch.no_grad():
      logits = theirs.eval()(input_ids=torch.tensor(tokens)).logits.numpy()
    self.assertGreater(logits.std(), 0.5)
    np.testing.assert_allclose(
      # Rows beyond the vocabulary are never sampled here.
      np.asarray(ours)[..., :265],
      logits[..., :265],
      atol=_LOGITS_F32,
      rtol=0,
    )


class RunTest(_FolderTest):
  """Exports of a work directory with checkpoints of steps 1 and 2."""

  def setUp(self):
    super().setUp()
    self._make_source()
    self.workdir = self.folder / 'run'
    self.config = base.get_config()
    self.config.model.path = str(self.source)
    self.saved = {}
    with checkpoint.open_store(self.workdir, keep=2) as store:
      for step in (1, 2):
        params = tiny_model.params(self.model, seed=step)
        self.saved[step] = params
        progress = checkpoint.Progress(checkpoint.Counters(rollout_steps=step))
        state = {'params': params, 'moments': jax.tree.map(abs, params)}
        store.save(state, progress, self.config.to_dict())

  def test_a_work_directory_is_its_newest_checkpoint(self):
    self.assert_same(self.saved[2], _params_of(self._export(self.workdir)))

  def test_a_checkpoint_is_itself(self):
    exported = self._export(self.workdir / 'checkpoints/1')
    self.assert_same(self.saved[1], _params_of(exported))

  def test_it_has_the_tokenizer_of_the_model_it_began_with(self):
    exported = self._export(self.workdir)
    config = json.loads((exported / 'tokenizer_config.json').read_text())
    self.assertEqual(config, _TOKENIZER_CONFIG)

  def test_a_model_that_moved_is_named(self):
    moved = self.source.rename(self.folder / 'moved')
    with self.assertRaisesRegex(ValueError, 'there is no folder .*source'):
      self._export(self.workdir)
    exported = self._export(self.workdir, model_path=str(moved))
    self.assert_same(self.saved[2], _params_of(exported))

  def test_a_step_that_is_not_there_lists_those_that_are(self):
    with self.assertRaisesRegex(ValueError, r'no checkpoint 7 .*\[1, 2\]'):
      self._export(self.workdir / 'checkpoints/7')

  @parameterized.parameters('', '{', '[]', '{"checkpoint": 1}')
  def test_broken_settings_are_told(self, text):
    (self.workdir / 'run_config.json').write_text(text)
    with self.assertRaisesRegex(ValueError, r'run_config\.json is broken'):
      self._export(self.workdir)

  def test_a_run_of_random_weights_needs_no_folder(self):
    workdir = self.folder / 'random'
    workdir.mkdir()
    config = base.get_config()
    config.model.layers, config.model.embed_dim = 1, 32
    config = ml_collections.FrozenConfigDict(config)
    parts = assemble.build(config, workdir)
    params = assemble.initial_params(config, parts)
    with checkpoint.open_store(workdir, keep=1) as store:
      store.save(
        {'params': params},
        checkpoint.Progress(checkpoint.Counters(rollout_steps=1)),
        config.to_dict(),
      )
    self.assert_same(params, _params_of(self._export(workdir)))


class RefusalTest(_FolderTest):
  def test_a_folder_that_exists_is_left_alone(self):
    self._make_source()
    out = self.folder / 'there'
    out.mkdir()
    with self.assertRaisesRegex(ValueError, 'there exists already'):
      self._export(self.source, out='there')
    with self.assertRaisesRegex(ValueError, 'there exists already'):
      self._import('there')
    self.assertEmpty([*out.iterdir()])

  def test_a_folder_without_a_model_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'there is no checkpoint in'):
      self._export(self.folder)

  def test_a_failed_import_leaves_nothing(self):
    self._make_source()
    (self.source / 'model.safetensors').unlink()
    before = sorted(self.folder.iterdir())
    with self.assertRaisesRegex(ValueError, 'no model.safetensors'):
      self._import()
    self.assertEqual(sorted(self.folder.iterdir()), before)

  def test_a_place_that_cannot_be_written_is_found_out_at_once(self):
    (self.folder / 'file').touch()
    with self.assertRaisesRegex(ValueError, 'file/out cannot be written'):
      # There is no source either; that would be found out later.
      self._export(self.source, out='file/out')

  def test_an_architecture_that_is_not_supported_is_named(self):
    self._make_source()
    config = hf_weights.read_config(self.source)
    config['architectures'] = ['MixtralForCausalLM']
    (self.source / 'config.json').write_text(json.dumps(config))
    with self.assertRaisesRegex(ValueError, 'MixtralForCausalLM is not supp'):
      self._import()
    self.assertIn('Qwen2ForCausalLM', spec_lib.ARCHITECTURES)


class SizeBytesTest(parameterized.TestCase):
  @parameterized.parameters(
    ('5GB', 5 * 10**9), ('1.5 MB', 1_500_000), ('10KB', 10_000), ('7', 7)
  )
  def test_units_are_decimal(self, text, size_bytes):
    self.assertEqual(transfer.size_bytes(text), size_bytes)

  @parameterized.parameters('', '0', '0GB', '-1GB', '5XB', 'GB', '1e9', '5gb')
  def test_another_text_is_refused(self, text):
    with self.assertRaisesRegex(ValueError, r'--max_shard_size \('):
      transfer.size_bytes(text)


if __name__ == '__main__':
  absltest.main()
