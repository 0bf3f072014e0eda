"""The sampler's engine: JetStream's Engine API over our decoder.

JetStream's methods (prefill, insert, generate) serve one request a slot and
one token a call. Reinforcement learning needs two more: `insert_group` puts
one prompt, prefilled once, into several slots; `generate_chunk` decodes many
tokens before it looks at the host.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Bool, Int

from dapo_jax.data import tokenizers
from dapo_jax.model import decoder
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import (
  cache_layout,
  decode,
  insertion,
  jetstream_compat,
  token_choice,
)
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import pages as pages_lib
from dapo_jax.sampling import programs as programs_lib

engine_api = jetstream_compat.engine_api
Samples = insertion.Samples


class Engine(engine_api.Engine):
  """JetStream's engine for one decoder, on one mesh."""

  def __init__(
    self,
    model: decoder.Abstract,
    tokenizer: tokenizers.Tokenizer,
    mesh: Mesh,
    limits: limits_lib.Limits,
    *,
    seed: int,
    serve_temperature: float = 1.0,
    devices: Sequence[jax.Device] | None = None,
  ):
    """Prepares the programs; allocates nothing and compiles nothing.

    Args:
      model: the decoder.
      tokenizer: of the model.
      mesh: the devices.
      limits: sizes.
      seed: of the noise of JetStream's requests, which are numbered as they
        are inserted; `insert_group` is given its noise.
      serve_temperature: of JetStream's requests, 0 = greedy.
      devices: of all engines, where parameters come from; None = of this one.

    Raises:
      ValueError: when the limits do not fit the model or the mesh.
    """
    shards = mesh.shape[mesh_lib.SLOT_AXIS]
    limits_lib.check(
      limits, context_tokens=model.spec.context_tokens, shards=shards
    )
    limits = self.limits = cache_layout.resolved(model, limits, mesh)
    self._pool_sizes = limits_lib.pool_sizes(limits, shards)
    self.eos_ids = tuple(tokenizer.eos_ids)
    self.params_shardings = mesh_lib.shardings(
      model.shapes, model.logical_axes, mesh, mesh_lib.ENGINE_RULES
    )
    self._mesh = mesh
    self._model = model
    self.tokenizer = tokenizer
    self._seed = seed
    self._serve_temperature = serve_temperature
    self._served_count = 0
    self._params = None
    self._programs = programs_lib.make(
      model,
      limits,
      mesh,
      eos_ids=self.eos_ids,
      engines=mesh_lib.engines_mesh(devices or [*mesh.devices.flat], mesh),
    )
    self._warm_buckets: set[int] = set()
    self._warm_chunk = False
    # A chunk is left for so many free slots: idle ones cost a share of every
    # step, a return to the host costs time too. Rows are read as many at a
    # time, so one program serves any number.
    self.refill_slots = max(1, limits.slots // 16)

  def place(self, params: decoder.Params) -> decoder.Params:
    """Returns a policy's parameters as this engine reads them fastest.

    Of the type of products, where they belong, and in the order of reading;
    what every other method takes. One program: new parameters compile nothing.
    """
    return self._programs.place(params)

  def prefill_prompt(
    self, params: decoder.Params, tokens: Int[np.ndarray, ' T']
  ) -> decode.Prefix:
    """Returns the prefix of a prompt, padded to its bucket.

    Raises:
      ValueError: when the prompt is empty or too long.
    """
    if not 0 < len(tokens) <= self.limits.prompt_tokens:
      raise ValueError(
        f'a prompt has {len(tokens)} tokens; it must have 1 to '
        f'{self.limits.prompt_tokens}; change --config.data.max_prompt_tokens'
      )
    padded = np.zeros(limits_lib.bucket_tokens(len(tokens)), np.int32)
    padded[: len(tokens)] = tokens
    return self._programs.prefill(params, padded, np.int32(len(tokens)))

  def insert_group(
    self, prefix: decode.Prefix, state: decode.DecodeState, samples: Samples
  ) -> decode.DecodeState:
    """Returns the state with one prefix in several slots; donates `state`.

    Raises:
      ValueError: when the samples may be longer than the engine's responses.
    """
    self.check_limits(samples.limits_tokens)
    state = self._warm_insertions(prefix, state)
    for part in insertion.parts(samples):
      state = self._insert(prefix, state, part)
    return state

  def check_limits(self, limits_tokens: Int[np.ndarray, ' G']) -> None:
    """Raises a ValueError for responses longer than the engine's."""
    least, most = limits_tokens.min(), limits_tokens.max()
    if not 0 < least <= most <= self.limits.response_tokens:
      raise ValueError(
        f'responses are limited to {least} to {most} tokens; a limit must be '
        f'1 to {self.limits.response_tokens}; change '
        '--config.rollout.max_response_tokens'
      )

  def new_pool(self) -> pages_lib.Pool:
    """Returns the books of the cache's pages, none of them taken."""
    return pages_lib.Pool(self._pool_sizes)

  def set_pages(
    self, state: decode.DecodeState, table: Int[np.ndarray, 'S W']
  ) -> decode.DecodeState:
    """Returns the state in which slots have these pages; donates `state`."""
    if self.limits.cache != 'paged':
      return state
    return self._programs.set_pages(state=state, table=table)

  def _warm_insertions(self, prefix, state):
    """Compiles all widths for a new bucket at once, so that none does later."""
    bucket = prefix.k.shape[1]
    if bucket in self._warm_buckets:
      return state
    self._warm_buckets.add(bucket)
    for width in insertion.WIDTHS:
      nowhere = insertion.nowhere(
        width,
        slots=self.limits.slots,
        pages=np.zeros(self._pool_sizes.row_pages, np.int32),
      )
      state = self._insert(prefix, state, nowhere)
    return state

  def _insert(self, prefix, state, samples: Samples):
    if self.limits.cache != 'paged':
      samples = samples._replace(pages=None)
    return self._programs.insert_group(
      state=state,
      prefix=prefix,
      samples=insertion.padded(samples, slots=self.limits.slots),
    )

  def generate_chunk(
    self,
    params: decoder.Params,
    state: decode.DecodeState,
    *,
    max_steps: int,
    leave_after: int,
    longest_tokens: int | None = None,
  ) -> tuple[decode.DecodeState, Int[Array, '']]:
    """Returns the state after some decode steps, and how many they were.

    Decodes until `max_steps` steps are done, `leave_after` rows have ended
    or none is live. Donates `state`; waits for nothing.

    Args:
      params: the policy.
      state: the slots.
      max_steps: most steps.
      leave_after: ended rows at which to return.
      longest_tokens: the longest live row, its prompt included, before these
        steps, so that a step attends to no more of the cache than it needs;
        None = to all of it.
    """
    blocks = None
    # Pages are read as far as a row is long: there is one program.
    if longest_tokens is not None and self.limits.cache != 'paged':
      blocks = limits_lib.blocks_for(self.limits, longest_tokens + max_steps)
      state = self._warm_chunks(params, state)
    return self._programs.chunk(
      params,
      state=state,
      max_steps=np.int32(max_steps),
      leave_after=np.int32(leave_after),
      attend_blocks=blocks,
    )

  def _warm_chunks(self, params, state):
    """Compiles a chunk for every number of blocks, so that none does later."""
    if self._warm_chunk:
      return state
    self._warm_chunk = True
    whole_row = limits_lib.cache_tokens(self.limits)
    most = limits_lib.blocks_for(self.limits, whole_row)
    for blocks in range(1, most + 1):
      state, _ = self._programs.chunk(
        params,
        state=state,
        max_steps=np.int32(0),
        leave_after=np.int32(1),
        attend_blocks=blocks,
      )
    return state

  def end_slots(
    self, state: decode.DecodeState, slots: Bool[np.ndarray, ' S']
  ) -> decode.DecodeState:
    """Returns the state with the marked slots ended; donates `state`."""
    return self._programs.end_slots(state=state, slots=slots)

  def look(
    self, state: decode.DecodeState, steps: Int[Array, '']
  ) -> tuple[
    Bool[np.ndarray, ' S'], Int[np.ndarray, ' S'], Int[np.ndarray, '']
  ]:
    """Returns which slots are live, their response tokens, and `steps`."""
    live, generated = self._programs.look(state)
    return jax.device_get((live, generated, steps))

  def read_rows(
    self, state: decode.DecodeState, slots: Sequence[int]
  ) -> list[tuple[Array, Array]]:
    """Returns the response tokens and log-probs of some slots, on the device.

    They come in parts of one size, the slots in order, the last part padded;
    they outlive `state`, and the host waits only when it looks at them.
    """
    width = self.refill_slots
    parts = [slots[i : i + width] for i in range(0, len(slots), width)]
    padded = [[*p, *[p[-1]] * (width - len(p))] for p in parts]
    take = self._programs.take_rows
    return [take(state, np.array(p, np.int32)) for p in padded]

  def warm_up(self) -> None:
    """Compiles what JetStream's driver calls, with the types it passes."""
    state = self.init_decode_state()
    for bucket in limits_lib.PREFILL_BUCKETS_TOKENS:
      if bucket <= self.max_prefill_length:
        tokens = np.zeros(bucket, np.int32)
        prefix = self.prefill(params=None, padded_tokens=tokens, true_length=1)
        state = self.insert(prefix, state, slot=0)
    state, result = self.generate(None, state)
    jax.block_until_ready(result.data)
    # The noise of a request does not depend on how much was compiled.
    self._served_count = 0

  def read_columns(
    self,
    state: decode.DecodeState,
    slots: Sequence[int],
    begins: Sequence[int],
    *,
    count: int,
  ) -> list[list[int]]:
    """Returns `count` response tokens of each slot, from its `begin` on.

    Slots and begins are as many as the engine has slots at most; what is not
    generated yet is anything.
    """
    pad = [0] * (self.limits.slots - len(slots))
    columns = self._programs.take_columns(
      state.out_tokens,
      np.array([*slots, *pad], np.int32),
      np.array([*begins, *pad], np.int32),
      count=min(count, self.limits.response_tokens),
    )
    return np.asarray(columns)[: len(slots)].tolist()

  # JetStream's abstract methods, in its order. Its driver reads parameters
  # once; given None, prefill and generate use those that were set last, which
  # can change under a running driver.

  def prefill(
    self, *, params, existing_prefix=None, padded_tokens, true_length
  ) -> decode.Prefix:
    """Returns the prefix of a padded prompt, or of its end (JetStream)."""
    if existing_prefix is not None:
      raise ValueError("a prefix can't be continued: existing_prefix is set")
    tokens = np.asarray(padded_tokens, np.int32)
    # An over-long prompt arrives as its end, with the length it had before.
    length = min(int(true_length), len(tokens))
    excess = max(0, length - self.limits.prompt_tokens)
    # What is rolled behind the end is as good as padding: no token sees it.
    tokens, length = np.roll(tokens, -excess), np.int32(length - excess)
    return self._programs.prefill(self._params_or_last(params), tokens, length)

  def generate(self, params, decode_state: decode.DecodeState):
    """Returns the state after one step, and its tokens (JetStream)."""
    was_live = decode_state.live.copy()
    params = self._params_or_last(params)
    state = self._programs.step(params, state=decode_state)
    valid = was_live.astype(jnp.int32)
    # The driver stops a request one step after its length passes the limit.
    length = state.generated + 1 - valid
    data = jnp.stack([state.token, valid, length], axis=1)
    return state, engine_api.ResultTokens(
      data=data,
      tokens_idx=(0, 1),
      valid_idx=(1, 2),
      length_idx=(2, 3),
      samples_per_slot=1,
    )

  def insert(
    self, prefix: decode.Prefix, decode_state: decode.DecodeState, slot: int
  ) -> decode.DecodeState:
    """Returns the state with a prefix in one slot (JetStream)."""
    keys = token_choice.sample_keys(
      self._seed,
      token_choice.Purpose.SERVE,
      self._served_count,
      samples=1,
    )
    self._served_count += 1
    slots = np.asarray([slot])
    limits = np.array([self.limits.response_tokens])
    choice = token_choice.Choice(temperature=self._serve_temperature)
    pages = pages_lib.own_pages(self._pool_sizes, slot)[None]
    samples = Samples(slots, np.asarray(keys), limits, choice, pages)
    return self._insert(prefix, decode_state, samples)

  def set_params(self, params: decoder.Params) -> None:
    """Sets what `load_params` returns; compiles nothing."""
    self._params = params

  def load_params(self, *args, **kwargs) -> decoder.Params:
    """Returns the parameters set last (JetStream)."""
    if self._params is None:
      raise ValueError('no parameters: call set_params first')
    return self._params

  def _params_or_last(self, params: decoder.Params | None) -> decoder.Params:
    return self.load_params() if params is None else params

  def get_prefix_destination_sharding(self) -> NamedSharding:
    """Returns where prefixes live: on the engine's own mesh (JetStream)."""
    return mesh_lib.replicated(self._mesh)

  def get_tokenizer(self):
    """Returns JetStream's description of the tokenizer, its path left out."""
    return jetstream_compat.tokenizer_pb2.TokenizerParameters(
      path='', extra_ids=0
    )

  def build_tokenizer(self, metadata):
    """Returns our tokenizer behind JetStream's interface (JetStream)."""
    del metadata
    return jetstream_compat.Tokenizer(self.tokenizer)

  def init_decode_state(self, *args, **kwargs) -> decode.DecodeState:
    """Returns empty slots (JetStream)."""
    return self._programs.empty()

  @property
  def max_concurrent_decodes(self) -> int:
    """The number of slots (JetStream)."""
    return self.limits.slots

  samples_per_slot = property(lambda self: 1, doc='One (JetStream).')

  @property
  def max_prefill_length(self) -> int:
    """The longest padded prompt, [tokens] (JetStream)."""
    return limits_lib.bucket_tokens(self.limits.prompt_tokens)

  mesh = property(lambda self: self._mesh, doc='Its devices (JetStream).')

  @property
  def colocated_cpus(self) -> None:
    """None are known (JetStream)."""
    return None
