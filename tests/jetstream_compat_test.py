"""Tests of `sampling.jetstream_compat`."""

import inspect
import logging
import pathlib
import subprocess
import sys
import textwrap

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_engine
from dapo_jax.sampling import jetstream_compat

_ROOT = pathlib.Path(__file__).resolve().parents[1]


def _python(code: str) -> subprocess.CompletedProcess:
  """Runs code in a process of its own, where nothing is imported yet."""
  return subprocess.run(
    [sys.executable, '-c', textwrap.dedent(code)],
    capture_output=True,
    text=True,
    timeout=120,
    cwd=_ROOT,
  )


class ImportTest(absltest.TestCase):
  def test_it_leaves_logging_and_stderr_alone(self):
    result = _python("""
      import logging
      import sys

      root = logging.getLogger()
      mine = logging.StreamHandler(sys.stdout)
      root.addHandler(mine)
      root.setLevel(logging.ERROR)
      from dapo_jax.sampling import jetstream_compat

      assert 'tensorflow' in sys.modules
      assert root.handlers == [mine], root.handlers
      assert root.level == logging.ERROR, root.level
      # What is written from now on is seen again.
      print('the one line', file=sys.stderr)
    """)
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertEqual(result.stderr, 'the one line\n')
    self.assertEqual(result.stdout, '')

  def test_what_an_import_does_to_the_root_logger_is_undone(self):
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    with jetstream_compat._quiet():
      root.addHandler(logging.NullHandler())
      root.setLevel(level + 7)
    self.assertEqual((root.level, root.handlers), (level, handlers))

  def test_another_version_is_refused_by_both_numbers(self):
    result = _python("""
      import importlib.metadata
      import sys

      found = importlib.metadata.version
      importlib.metadata.version = (
        lambda name: '9.8.7' if name == 'google-jetstream' else found(name)
      )
      try:
        from dapo_jax.sampling import jetstream_compat
      except ImportError as error:
        print(error)
      assert 'tensorflow' not in sys.modules
    """)
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn('google-jetstream 9.8.7 is installed', result.stdout)
    self.assertIn('pip install google-jetstream==0.2.2', result.stdout)

  def test_an_error_in_the_import_is_still_seen(self):
    result = _python("""
      import sys

      sys.modules['jetstream.engine.token_utils'] = None
      from dapo_jax.sampling import jetstream_compat
    """)
    self.assertEqual(result.returncode, 1)
    self.assertIn('jetstream.engine', result.stderr)


class OrchestratorTest(absltest.TestCase):
  def test_it_is_imported_when_asked_for_and_logs_nothing(self):
    result = _python("""
      import logging
      import sys

      from dapo_jax.sampling import engine, jetstream_compat

      assert 'jetstream.core.orchestrator' not in sys.modules
      root = logging.getLogger()
      level, handlers = root.level, list(root.handlers)
      orchestrator = jetstream_compat.load_orchestrator()
      assert orchestrator is sys.modules['jetstream.core.orchestrator']
      assert (root.level, root.handlers) == (level, handlers)
      orchestrator.logging.warning('a step')
      assert not root.handlers
    """)
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertEqual((result.stdout, result.stderr), ('', ''))

  def test_it_deletes_the_arrays_of_a_tree(self):
    orchestrator = jetstream_compat.load_orchestrator()
    tree = {'a': jnp.ones(2), 'b': (jnp.ones(3), 'text', np.ones(1))}
    orchestrator.delete_pytree(tree)
    self.assertTrue(tree['a'].is_deleted())
    self.assertTrue(tree['b'][0].is_deleted())


class TokenizerTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.tokenizer = jetstream_compat.Tokenizer(
      tiny_engine.Tokenizer(eos_ids=(7, 20), pad_id=9)
    )

  def test_nothing_is_left_abstract(self):
    self.assertFalse(inspect.isabstract(jetstream_compat.Tokenizer))
    self.assertIsInstance(
      self.tokenizer, jetstream_compat.tokenizer_api.Tokenizer
    )

  # The driver asks for a BOS at the beginning of every request.
  @parameterized.product(is_bos=(True, False), jax_padding=(True, False))
  def test_it_pads_to_a_bucket_and_puts_nothing_before(
    self, is_bos, jax_padding
  ):
    tokens, length = self.tokenizer.encode(
      'cab',
      is_bos=is_bos,
      prefill_lengths=[4, 8],
      max_prefill_length=8,
      jax_padding=jax_padding,
    )
    np.testing.assert_array_equal(tokens, [2, 0, 1, 9])
    self.assertEqual(length, 3)
    self.assertEqual(isinstance(tokens, np.ndarray), not jax_padding)
    self.assertEqual(tokens.dtype, np.int32)

  def test_left_to_itself_it_pads_to_jetstreams_buckets(self):
    tokens, length = self.tokenizer.encode('abcdefghijklmnopq')
    self.assertEqual((tokens.shape, length), ((32,), 17))

  def test_encoding_runs_no_tensorflow_operation(self):
    result = _python("""
      import sys

      sys.path.insert(0, 'tests')
      import tiny_engine
      import tensorflow as tf
      from dapo_jax.sampling import jetstream_compat

      def refuse(*_, **__):
        raise AssertionError('an operation of TensorFlow ran')

      from tensorflow.python.eager import context, execute
      execute.execute = execute.quick_execute = refuse
      context.Context.ensure_initialized = refuse
      try:
        tf.constant(1) + 1
      except AssertionError:
        pass
      else:
        raise SystemExit('the trap is not set')
      tokenizer = jetstream_compat.Tokenizer(tiny_engine.Tokenizer())
      print(tokenizer.encode('cab')[1], tokenizer.decode([2, 0, 1]))
    """)
    self.assertEqual(result.stdout, '3 cab\n', result.stderr)

  def test_decoding_is_ours(self):
    self.assertEqual(self.tokenizer.decode([2, 0, 7, 1]), 'cab')

  def test_special_ids_are_ours(self):
    self.assertEqual(self.tokenizer.pad_id, 9)
    self.assertEqual(self.tokenizer.eos_id, 7)

  def test_the_driver_gets_no_stop_token(self):
    self.assertEqual(self.tokenizer.stop_tokens, set())


if __name__ == '__main__':
  absltest.main()
