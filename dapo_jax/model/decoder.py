"""The policy network: a dense decoder, as Llama and Qwen are, in Flax NNX.

The module is split once into (graphdef, params); everything else is a pure
function of the params, a nested dict of arrays. Layers are stacked: every
weight of a block has a leading axis L, and whole-row passes scan over it, so
that the time to compile does not grow with the depth.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from dapo_jax.model import product, rope, row_attention, row_layout
from dapo_jax.model import spec as spec_lib

Params = dict[str, Any]
Attend = Callable[[Array, Array, Array], tuple[Array, Any]]

_ANYWHERE = row_layout.RowLayout()
_LAYER_INPUT = 'layer_input'
_policies = jax.checkpoint_policies
_KEEP_ATTENTION = _policies.save_only_these_names(row_attention.KEPT)
# By `model.remat`: what the backward pass finds of a layer, beside its input.
_REMAT_POLICIES = {
  'full': _policies.nothing_saveable,
  'attention': _KEEP_ATTENTION,
  'dots': _policies.save_from_both_policies(
    _policies.dots_with_no_batch_dims_saveable, _KEEP_ATTENTION
  ),
  # Not even that: the host has it.
  'offload': _policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=[_LAYER_INPUT],
    offload_src='device',
    offload_dst='pinned_host',
  ),
}


# Stays finite when a temperature divides it: -inf times a probability of 0
# would make entropies NaN.
_NO_LOGIT = -1e30


class Block(nnx.Module):
  """The weights of all L layers; called on the slice of one layer."""

  def __init__(
    self, spec: spec_lib.Spec, *, compute_dtype: str, rngs: nnx.Rngs
  ):
    self.spec = spec
    self.dtype = compute_dtype
    shape = {
      'layers': spec.layers,
      'embed': spec.embed_dim,
      'heads': spec.heads,
      'kv_heads': spec.kv_heads,
      'head_dim': spec.head_dim,
      'ffw': spec.ffw_dim,
    }

    def weight(*axes: str, std: float | None = spec.init_std) -> nnx.Param:
      return _weight(rngs, tuple(shape[a] for a in axes), axes, std=std)

    self.attention_norm = weight('layers', 'embed', std=None)
    self.q = weight('layers', 'embed', 'heads', 'head_dim')
    self.k = weight('layers', 'embed', 'kv_heads', 'head_dim')
    self.v = weight('layers', 'embed', 'kv_heads', 'head_dim')
    if spec.qkv_bias:
      self.q_bias = weight('layers', 'heads', 'head_dim', std=0.0)
      self.k_bias = weight('layers', 'kv_heads', 'head_dim', std=0.0)
      self.v_bias = weight('layers', 'kv_heads', 'head_dim', std=0.0)
    if spec.qk_norm:
      self.q_norm = weight('layers', 'head_dim', std=None)
      self.k_norm = weight('layers', 'head_dim', std=None)
    self.out = weight('layers', 'heads', 'head_dim', 'embed')
    self.ffw_norm = weight('layers', 'embed', std=None)
    self.gate = weight('layers', 'embed', 'ffw')
    self.up = weight('layers', 'embed', 'ffw')
    self.down = weight('layers', 'ffw', 'embed')

  def __call__(
    self,
    x: Float[Array, 'B T D'],
    positions: Int[Array, 'B T'],
    attend: Attend,
    rows: row_layout.RowLayout = _ANYWHERE,
  ) -> tuple[Float[Array, 'B T D'], Any]:
    """Returns one layer's output and what `attend` wants kept."""
    place = rows.place
    w = lambda p: rows.gather(
      p[...].astype(self.dtype), *p.get_metadata('axes')[1:]
    )
    y = _rms_norm(x, self.attention_norm[...], self.spec.norm_eps)
    y = place(y, 'rows', 'tokens', 'embed')
    q, k, v = (_projected(y, w(p)) for p in (self.q, self.k, self.v))
    if self.spec.qkv_bias:
      q, k, v = q + w(self.q_bias), k + w(self.k_bias), v + w(self.v_bias)
    if self.spec.qk_norm:
      q = _rms_norm(q, self.q_norm[...], self.spec.norm_eps)
      k = _rms_norm(k, self.k_norm[...], self.spec.norm_eps)
    frequencies = rope.frequencies(self.spec)
    q = rope.rotate(q, positions, frequencies=frequencies)
    k = rope.rotate(k, positions, frequencies=frequencies)
    q = place(q, 'rows', 'tokens', 'heads', 'head_dim')
    k = place(k, 'rows', 'tokens', 'kv_heads', 'head_dim')
    v = place(v, 'rows', 'tokens', 'kv_heads', 'head_dim')
    out, kept = attend(q, k, v)
    # As one product of two axes: over three, XLA:CPU transposes the weight.
    out = out.reshape(*out.shape[:2], -1)
    x = x + product.of_rows(out, w(self.out).reshape(out.shape[-1], -1))
    x = place(x, 'rows', 'split_tokens', 'embed')
    y = _rms_norm(x, self.ffw_norm[...], self.spec.norm_eps)
    y = place(y, 'rows', 'tokens', 'embed')
    gate, up = (product.of_rows(y, w(p)) for p in (self.gate, self.up))
    y = place(jax.nn.silu(gate) * up, 'rows', 'tokens', 'ffw')
    x = x + product.of_rows(y, w(self.down))
    return place(x, 'rows', 'split_tokens', 'embed'), kept


class Decoder(nnx.Module):
  """Token ids to hidden states and logits."""

  def __init__(
    self,
    spec: spec_lib.Spec,
    *,
    compute_dtype: str,
    remat: str,
    rows: row_layout.RowLayout,
    rngs: nnx.Rngs,
  ):
    self.spec = spec
    self.dtype = compute_dtype
    self.remat = remat
    self.rows = rows
    table = (spec.vocab_rows, spec.embed_dim)
    axes = ('vocab', 'embed')
    self.embedding = _weight(rngs, table, axes, std=spec.init_std)
    self.block = Block(spec, compute_dtype=compute_dtype, rngs=rngs)
    self.final_norm = _weight(rngs, table[1:], axes[1:], std=None)
    if not spec.tied_head:
      self.head = _weight(rngs, table, axes, std=spec.init_std)
    if spec.value_head:
      # Zeros: before it learns anything a critic expects nothing.
      self.value_head = _weight(rngs, table[1:], axes[1:], std=0.0)

  def __call__(
    self,
    tokens: Int[Array, 'B T'],
    *,
    positions: Int[Array, 'B T'],
    segment_ids: Int[Array, 'B T'],
    prefix_ids: Int[Array, 'B T'] | None = None,
  ) -> Float[Array, 'B T D']:
    """Returns the final hidden states of packed rows.

    What a place sees, its segment and its prefix, is as in `attention`.
    """

    def attend(q, k, v):
      out = row_attention.attend(
        q,
        k,
        v,
        layout=self.rows,
        segment_ids=segment_ids,
        prefix_ids=prefix_ids,
        positions=positions,
        window_tokens=self.spec.window_tokens,
      )
      return out, None

    x = self.rows.look_up(self.embedding[...], tokens, self.dtype)
    return self._scan_layers(x, positions, attend)

  def gathered_head(self) -> Float[Array, 'V D']:
    """Returns what `logits` multiplies with, ready for many products."""
    return self.rows.gather(self._head()[...], 'vocab', 'embed')

  def logits(
    self,
    hidden: Float[Array, '... D'],
    head: Float[Array, 'V D'] | None = None,
  ) -> Float[Array, '... V']:
    """Returns float32 logits; rows beyond `vocab_size` can't be sampled.

    Args:
      hidden: final hidden states.
      head: what `gathered_head` returned; None = the head as it lies.
    """
    if head is None:
      head = self._head()[...]
    else:
      head = self.rows.reused(head, 'vocab', 'embed')
    logits = jnp.einsum(
      '...d,vd->...v',
      hidden,
      head.astype(self.dtype),
      preferred_element_type=jnp.float32,
    )
    if self.spec.vocab_size == self.spec.vocab_rows:
      return logits
    exists = jnp.arange(self.spec.vocab_rows) < self.spec.vocab_size
    return jnp.where(exists, logits, _NO_LOGIT)

  def values(self, hidden: Float[Array, '... D']) -> Float[Array, '...']:
    """Returns the estimated return from each place, in float32."""
    return jnp.einsum(
      '...d,d->...',
      hidden,
      self.value_head[...].astype(self.dtype),
      preferred_element_type=jnp.float32,
    )

  def embed(self, tokens: Int[Array, 'B T']) -> Float[Array, 'B T D']:
    """Returns what the first layer is given."""
    return self.embedding[...].astype(self.dtype)[tokens]

  def normed(self, x: Float[Array, '... D']) -> Float[Array, '... D']:
    """Returns the hidden states that the last layer's output gives."""
    return _rms_norm(x, self.final_norm[...], self.spec.norm_eps)

  def _as_computed(self, path, weight: Array) -> Array:
    is_norm = any(str(getattr(k, 'key', '')).endswith('norm') for k in path)
    return weight if is_norm else weight.astype(self.dtype)

  def _head(self) -> nnx.Param:
    return self.embedding if self.spec.tied_head else self.head

  def _scan_layers(
    self, x: Float[Array, 'B T D'], positions, attend: Attend
  ) -> Float[Array, 'B T D']:
    """Returns the normed hidden states of what the first layer is given."""
    graphdef, weights = nnx.split(self.block)
    # All at once: then their gradients, which are of this type anyway, are not
    # kept in a larger one.
    weights = jax.tree_util.tree_map_with_path(self._as_computed, weights)
    place = self.rows.place

    def layer(x, layer_weights):
      x = checkpoint_name(x, _LAYER_INPUT)
      block = nnx.merge(graphdef, layer_weights)
      return block(x, positions, attend, self.rows)

    if self.remat != 'none':
      policy = _REMAT_POLICIES[self.remat]
      # Inside a scan nothing can be found to be the same as before.
      layer = jax.checkpoint(layer, policy=policy, prevent_cse=False)
    x = place(x, 'rows', 'split_tokens', 'embed')
    x, _ = jax.lax.scan(layer, x, weights)
    return place(self.normed(x), 'rows', 'tokens', 'embed')


class Abstract(NamedTuple):
  """A decoder without its weights: what jitted functions close over."""

  spec: spec_lib.Spec
  graphdef: Any
  shapes: Params
  logical_axes: Params


def abstract(
  spec: spec_lib.Spec,
  *,
  compute_dtype: str,
  remat: str,
  rows: row_layout.RowLayout = _ANYWHERE,
) -> Abstract:
  """Returns the decoder's structure, shapes and axes; allocates nothing.

  Args:
    spec: its shape.
    compute_dtype: of activations and products.
    remat: what the backward pass recomputes, see `model.remat`.
    rows: how passes over whole rows are laid out; sampling has its own ways.
  """
  module = nnx.eval_shape(
    lambda: Decoder(
      spec,
      compute_dtype=compute_dtype,
      remat=remat,
      rows=rows,
      rngs=nnx.Rngs(0),
    )
  )
  graphdef, state = nnx.split(module)
  axes = jax.tree.map(
    lambda v: v.get_metadata('axes'),
    state,
    is_leaf=lambda v: isinstance(v, nnx.Variable),
  )
  return Abstract(
    spec, graphdef, nnx.to_pure_dict(state), nnx.to_pure_dict(axes)
  )


def with_value_head(model: Abstract, *, keep_token_head: bool) -> Abstract:
  """Returns the decoder with a value head, for a critic.

  Without `keep_token_head` it has no output head of its own: nothing reads
  the logits of a critic that shares no layer with the policy.
  """
  module = nnx.merge(model.graphdef, model.shapes)
  tied_head = model.spec.tied_head or not keep_token_head
  spec = dataclasses.replace(model.spec, value_head=True, tied_head=tied_head)
  return abstract(
    spec, compute_dtype=module.dtype, remat=module.remat, rows=module.rows
  )


def without_value_head(params: Params) -> Params:
  """Returns the parameters that sampling and export know."""
  return {k: v for k, v in params.items() if k != 'value_head'}


def for_sampling(
  model: Abstract, params: Params, *, stacked: bool = True
) -> Params:
  """Returns the parameters as sampling reads them: all of them, every token.

  In the type that products take them in, as a product would convert them
  anyway: half the bytes are half the time. The scales of norms, which are used
  in float32, stay. Not `stacked`, the block is a tuple of layers: a slice of
  stacked weights is copied before a product.
  """
  dtype = nnx.merge(model.graphdef, model.shapes).dtype

  def one(path, weight):
    is_norm = path[-1].key.endswith('norm')
    return weight if is_norm else weight.astype(dtype)

  params = jax.tree_util.tree_map_with_path(one, without_value_head(params))
  if stacked:
    return params
  layers = tuple(
    jax.tree.map(lambda w, i=i: w[i], params['block'])
    for i in range(model.spec.layers)
  )
  return params | {'block': layers}


def random_params(model: Abstract, seed: int, *, shardings: Any) -> Params:
  """Returns random parameters, created where they belong.

  The values depend on the seed alone, not on the shardings.
  """

  def create(key):
    module = nnx.merge(model.graphdef, model.shapes)
    fresh = Decoder(
      model.spec,
      compute_dtype=module.dtype,
      remat=module.remat,
      rows=module.rows,
      rngs=nnx.Rngs(key),
    )
    return nnx.to_pure_dict(nnx.state(fresh))

  return jax.jit(create, out_shardings=shardings)(jax.random.key(seed))


def _weight(rngs: nnx.Rngs, shape, axes, *, std: float | None) -> nnx.Param:
  """Returns a float32 weight: normal of this deviation, or ones for None."""
  if std is None:
    return nnx.Param(jnp.ones(shape), axes=axes)
  if std == 0.0:
    return nnx.Param(jnp.zeros(shape), axes=axes)
  return nnx.Param(std * jax.random.normal(rngs.params(), shape), axes=axes)


def _projected(
  x: Float[Array, 'B T D'], weight: Float[Array, 'D N H']
) -> Float[Array, 'B T N H']:
  """Returns the product with a weight that gives heads."""
  embed, heads, head_dim = weight.shape
  flat = product.of_rows(x, weight.reshape(embed, heads * head_dim))
  return flat.reshape(*x.shape[:-1], heads, head_dim)


def _rms_norm(
  x: Float[Array, '... D'], scale: Float[Array, ' D'], eps: float
) -> Float[Array, '... D']:
  """Returns x / sqrt(mean(x^2) + eps) * scale, statistics in float32."""
  x32 = x.astype(jnp.float32)
  inverse = jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + eps)
  return (x32 * inverse * scale).astype(x.dtype)
