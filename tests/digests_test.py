"""Tests of `training.digests`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.training import digests


class _State(NamedTuple):
  params: dict
  count: jax.Array


def _by_hand(x: np.ndarray) -> int:
  """Returns the digest, computed word by word with Python's integers."""
  word_type = {1: np.uint8, 2: np.uint16, 4: np.uint32}[x.dtype.itemsize]
  words = np.atleast_1d(x).reshape(-1).view(word_type)
  total, m = 0, 2**32
  for i, word in enumerate(words.tolist()):
    h = i * 0x9E3779B1 % m
    h = (h ^ h >> 15) * 0x85EBCA77 % m
    h = h ^ h >> 13 | 1
    total += word * h
  return total % m


class DigestTest(parameterized.TestCase):
  @parameterized.parameters(
    ('float32', (4, 3, 2)), ('bfloat16', (5, 2)), ('int32', ()), ('bool', (3,))
  )
  def test_it_is_the_sum_over_the_words(self, dtype, shape):
    values = 100 * np.random.default_rng(0).standard_normal(shape)
    x = np.asarray(jnp.asarray(values).astype(dtype))
    self.assertEqual(int(digests.digest(jnp.asarray(x))), _by_hand(x))

  def test_any_single_bit_changes_it(self):
    x = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    whole = int(digests.digest(jnp.asarray(x)))
    for place in (0, 7, 14):
      for bit in range(32):
        other = x.copy()
        other.reshape(-1).view(np.uint32)[place] ^= np.uint32(1 << bit)
        self.assertNotEqual(int(digests.digest(jnp.asarray(other))), whole)

  def test_order_counts_and_so_does_the_sign_of_0(self):
    x = jnp.array([1.0, 2.0, 0.0])
    for other in ([2.0, 1.0, 0.0], [1.0, 2.0, -0.0]):
      self.assertNotEqual(
        int(digests.digest(jnp.array(other))),
        int(digests.digest(jnp.asarray(x))),
      )

  def test_one_of_all_changes_with_a_value_and_with_a_name(self):
    found = digests.of_all({'a': jnp.arange(3), 'b': jnp.arange(4)})
    self.assertRegex(found, r'^[0-9a-f]{16}$')
    again = digests.of_all({'b': jnp.arange(4), 'a': jnp.arange(3)})
    self.assertEqual(found, again)
    for other in (
      {'a': jnp.arange(3), 'b': jnp.arange(4).at[2].set(0)},
      {'a': jnp.arange(3), 'c': jnp.arange(4)},
    ):
      self.assertNotEqual(digests.of_all(other), found)

  def test_it_is_the_same_on_any_mesh(self):
    if jax.device_count() < 8:
      self.skipTest('needs 8 devices, see XLA_FLAGS in tests/conftest.py')
    x = np.random.default_rng(2).standard_normal((16, 8)).astype(np.float32)
    mesh = mesh_lib.update_mesh(jax.devices()[:8], data=1, fsdp=4, tensor=2)
    spec = jax.sharding.PartitionSpec('fsdp', 'tensor')
    split = jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
    self.assertLen({s.device for s in split.addressable_shards}, 8)
    self.assertEqual(
      digests.leaves({'x': split}), digests.leaves({'x': jnp.asarray(x)})
    )


class TreeTest(absltest.TestCase):
  def test_leaves_are_named_by_their_path(self):
    state = _State({'block': {'q': jnp.zeros((2, 3))}}, jnp.int32(5))
    self.assertEqual(
      digests.leaves(state),
      {
        'params/block/q': ('float32[2,3]', '00000000'),
        # 5 times the multiplier of place 0, which is 1.
        'count': ('int32[]', '00000005'),
      },
    )

  def test_shapes_have_kinds_too(self):
    like = {'a': jax.ShapeDtypeStruct((4,), jnp.bfloat16)}
    self.assertEqual(digests.kinds(like), {'a': 'bfloat16[4]'})

  def test_all_differences_are_told_in_the_order_of_their_paths(self):
    saved = {'b': 'float32[2]', 'a': 'float32[1]', 'same': 'int32[]'}
    self.assertEqual(
      digests.differences(
        {path: digests.Leaf(kind, '') for path, kind in saved.items()},
        {'b': 'float32[3]', 'c': 'float32[4]', 'same': 'int32[]'},
      ),
      [
        'a: saved float32[1], wanted nothing',
        'b: saved float32[2], wanted float32[3]',
        'c: saved nothing, wanted float32[4]',
      ],
    )


if __name__ == '__main__':
  absltest.main()
