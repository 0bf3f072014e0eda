"""Tests of `planning.model_shapes`."""

import json
import math
import pathlib
import tempfile

import jax
from absl.testing import absltest, parameterized

import tiny_run
from dapo_jax.model import decoder
from dapo_jax.planning import model_shapes


class SpecTest(parameterized.TestCase):
  # As the models' pages give them, [billions].
  @parameterized.parameters(
    ('Qwen/Qwen2.5-Math-1.5B-Instruct', 1.54),
    ('Qwen/Qwen2.5-3B', 3.09),
    ('Qwen/Qwen2.5-Math-7B', 7.61),
    ('Qwen/Qwen2.5-14B', 14.7),
    ('Qwen/Qwen2.5-32B', 32.5),
  )
  def test_the_papers_models_have_their_parameters(self, path, billions):
    spec = model_shapes.spec(tiny_run.config({'model.path': path}))
    model = decoder.abstract(spec, compute_dtype='float32', remat='none')
    count = sum(math.prod(x.shape) for x in jax.tree.leaves(model.shapes))
    # Pages leave the padding of the vocabulary out, or do not.
    self.assertAlmostEqual(count / 1e9 / billions, 1, delta=0.015)

  def test_a_folder_needs_no_more_than_its_config(self):
    known = model_shapes.KNOWN['Qwen/Qwen2.5-3B']
    with tempfile.TemporaryDirectory() as folder:
      pathlib.Path(folder, 'config.json').write_text(json.dumps(dict(known)))
      found = model_shapes.spec(tiny_run.config({'model.path': folder}))
    self.assertEqual((found.layers, found.kv_heads), (36, 2))

  def test_a_folder_that_is_not_here_is_known_by_its_name(self):
    path = 'input/Qwen2.5-3B'
    with self.assertLogs(logger='absl', level='WARNING') as logs:
      found = model_shapes.spec(tiny_run.config({'model.path': path}))
    self.assertEqual((found.layers, found.kv_heads), (36, 2))
    self.assertRegex(logs.output[0], f'{path} is not here; .* Qwen/Qwen2.5-3B')
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, 'Qwen2.5-3B')
      path.mkdir()
      with self.assertRaisesRegex(ValueError, 'with a config.json'):
        model_shapes.spec(tiny_run.config({'model.path': str(path)}))

  def test_random_weights_have_the_vocabulary_that_is_trained(self):
    found = model_shapes.spec(tiny_run.config())
    # Rounded up to 64.
    self.assertEqual((found.vocab_size, found.vocab_rows), (300, 320))
    self.assertEqual(found.layers, 2)

  def test_nothing_is_downloaded(self):
    with self.assertRaisesRegex(
      ValueError, r'model\.path \(Owner/Model\).*--config\.model\.path'
    ):
      model_shapes.spec(tiny_run.config({'model.path': 'Owner/Model'}))


if __name__ == '__main__':
  absltest.main()
