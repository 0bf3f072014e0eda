"""Tests of `sampling.engine`."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding

import tiny_engine
import tiny_model
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import (
  cache_layout,
  decode,
  jetstream_compat,
  token_choice,
)
from dapo_jax.sampling import engine as engine_lib

_API = jetstream_compat.engine_api


def _engine(
  limits=tiny_engine.LIMITS, *, devices=1, model=None
) -> engine_lib.Engine:
  """Returns a new engine: cheap, it compiles nothing."""
  return engine_lib.Engine(
    tiny_engine.model() if model is None else model,
    tiny_engine.Tokenizer(),
    mesh_lib.engine_mesh(jax.devices()[:devices], tensor=1),
    limits,
    seed=3,
  )


def _samples(slots, *, temperature=0.0, limit=20, keys=None):
  slots = np.asarray(slots)
  if keys is None:
    keys = token_choice.sample_keys(
      1, token_choice.Purpose.TRAIN, 2, samples=len(slots)
    )
  limits = np.full(len(slots), limit)
  choice = token_choice.Choice(temperature)
  return engine_lib.Samples(slots, keys, limits, choice)


def _response(state, slot=0):
  return np.asarray(state.out_tokens)[slot, : state.generated[slot]].tolist()


class ConstructionTest(parameterized.TestCase):
  def test_it_is_jetstreams_engine_with_nothing_left_abstract(self):
    self.assertTrue(issubclass(engine_lib.Engine, _API.Engine))
    self.assertFalse(inspect.isabstract(engine_lib.Engine))
    self.assertIsInstance(_engine(), _API.Engine)

  def test_it_says_its_sizes(self):
    engine = _engine()
    self.assertEqual(engine.max_concurrent_decodes, 8)
    self.assertEqual(engine.samples_per_slot, 1)
    # The bucket of 12: the driver pads prompts to no more.
    self.assertEqual(engine.max_prefill_length, 16)
    self.assertEqual(engine.mesh.devices.size, 1)
    self.assertIsNone(engine.colocated_cpus)
    self.assertIsInstance(
      engine.get_prefix_destination_sharding(), NamedSharding
    )

  def test_it_compiles_nothing_before_it_is_used(self):
    with tiny_engine.compilations() as compiled:
      _engine()
    self.assertEmpty(compiled)

  def test_slots_must_be_divisible_by_their_devices(self):
    limits = tiny_engine.LIMITS._replace(slots=12)
    with self.assertRaisesRegex(
      ValueError, r'slots \(12\).*\(8\); change --config.sampler.slots'
    ):
      _engine(limits, devices=8)

  def test_a_row_must_fit_the_context(self):
    model = tiny_model.model(context_tokens=32)
    _engine(model=model)
    limits = tiny_engine.LIMITS._replace(response_tokens=21)
    with self.assertRaises(ValueError) as caught:
      _engine(limits, model=model)
    message = str(caught.exception)
    for part in (
      'prompt of 12',
      'response of 21',
      '(32)',
      '--config.data.max_prompt_tokens',
      '--config.rollout.max_response_tokens',
    ):
      self.assertIn(part, message)


class PromptTest(parameterized.TestCase):
  @parameterized.parameters(0, 13)
  def test_an_empty_or_too_long_prompt_is_refused(self, length):
    with self.assertRaisesRegex(
      ValueError,
      f'{length} tokens.* 1 to 12; .*--config.data.max_prompt_tokens',
    ):
      tiny_engine.build().prefill_prompt(
        tiny_engine.params(), np.ones(length, np.int32)
      )

  @parameterized.parameters(1, 12)
  def test_the_shortest_and_the_longest_are_served(self, length):
    prefix = tiny_engine.build().prefill_prompt(
      tiny_engine.params(), np.ones(length, np.int32)
    )
    self.assertEqual(prefix.length_tokens, length)
    self.assertEqual(prefix.k.shape, (2, 16, 2, 12))

  def test_a_limit_beyond_the_engines_is_refused(self):
    engine, params = tiny_engine.build(), tiny_engine.params()
    prefix = engine.prefill_prompt(params, tiny_engine.PROMPTS[0])
    state = engine.init_decode_state()
    for limit in (0, 21):
      with self.assertRaisesRegex(
        ValueError,
        rf'to {limit} tokens.* 1 to 20; .*--config.rollout.max_response_tokens',
      ):
        engine.insert_group(prefix, state, _samples([0], limit=limit))


class JetStreamPathTest(parameterized.TestCase):
  """Prefill, insert and generate as JetStream's driver calls them."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.engine, cls.params = _engine(), tiny_engine.params()

  def _prefill(self, prompt, **changes):
    padded = np.zeros(16, np.int32)
    padded[: len(prompt)] = prompt
    arguments = {'padded_tokens': padded, 'true_length': len(prompt)}
    return self.engine.prefill(params=self.params, **arguments | changes)

  def _generate(self, state, *, steps):
    """Returns (state, slot data of slot 0 and 5 after each step)."""
    seen = []
    for _ in range(steps):
      state, result = self.engine.generate(self.params, state)
      result = result.convert_to_numpy()
      seen.append([result.get_result_at_slot(slot) for slot in (0, 5)])
    return state, seen

  def _both_ways(self, *, temperature):
    """Returns (results of slots 0 and 5, our own state with the same two)."""
    state = self.engine.init_decode_state()
    ours = self.engine.init_decode_state()
    for slot, prompt in ((0, tiny_engine.PROMPTS[0]), (5, [7, 3])):
      state = self.engine.insert(self._prefill(prompt), state, slot)
      samples = _samples(
        [slot],
        keys=np.asarray(state.sample_key)[[slot]],
        temperature=temperature,
      )
      prefix = self.engine.prefill_prompt(self.params, np.int32(prompt))
      ours = self.engine.insert_group(prefix, ours, samples)
    self.assertEqual([x[0] for x in state.choice], [1, 0, 1, 0])
    state = state._replace(choice=jax.tree.map(jnp.copy, ours.choice))
    _, seen = self._generate(state, steps=22)
    ours, _ = self.engine.generate_chunk(
      self.params, ours, max_steps=100, leave_after=100
    )
    return seen, ours

  def _assert_same_responses(self, *, temperature):
    seen, ours = self._both_ways(temperature=temperature)
    for column, slot in enumerate((0, 5)):
      valid = [step[column].tokens[0, 0] for step in seen if step[column].valid]
      self.assertEqual(valid, _response(ours, slot))

  def test_greedy_tokens_are_those_of_a_chunk(self):
    self._assert_same_responses(temperature=0.0)

  def test_sampled_tokens_are_those_of_a_chunk(self):
    self._assert_same_responses(temperature=1.0)

  def test_results_have_the_drivers_shapes(self):
    state = self.engine.insert(
      self._prefill([5, 9]), self.engine.init_decode_state(), 5
    )
    _, result = self.engine.generate(self.params, state)
    self.assertEqual(result.data.shape, (8, 3))
    slot = result.convert_to_numpy().get_result_at_slot(5)
    self.assertEqual(slot.tokens.shape, (1, 1))
    self.assertEqual(slot.valid.tolist(), [[1]])
    self.assertEqual(slot.lengths.tolist(), [1])
    idle = result.convert_to_numpy().get_result_at_slot(0)
    self.assertEqual(idle.valid.tolist(), [[0]])

  def test_it_turns_invalid_after_the_end_and_its_length_goes_on_by_one(self):
    seen, ours = self._both_ways(temperature=1.0)
    for column, slot in enumerate((0, 5)):
      count = int(ours.generated[slot])
      valid = [bool(step[column].valid) for step in seen]
      self.assertEqual(valid, [True] * count + [False] * (22 - count))
      lengths = [int(step[column].lengths[0]) for step in seen]
      self.assertEqual(
        lengths, [*range(1, count + 1)] + [count + 1] * (22 - count)
      )

  def test_every_insertion_has_its_own_noise(self):
    engine, prefix = _engine(), self._prefill([5, 9])
    state = engine.init_decode_state()
    for slot in range(8):
      state = engine.insert(prefix, state, slot)
    expected = [
      token_choice.sample_keys(3, token_choice.Purpose.SERVE, i, samples=1)
      for i in range(8)
    ]
    np.testing.assert_array_equal(state.sample_key, np.concatenate(expected))

  @parameterized.parameters(16, 40)
  def test_of_an_over_long_prompt_the_end_is_kept(self, true_length):
    # The driver cuts a prompt to the bucket and says the length it had.
    tokens = np.arange(16, dtype=np.int32)
    prefix = self._prefill([], padded_tokens=tokens, true_length=true_length)
    self.assertEqual(prefix.length_tokens, 12)
    self.assertEqual(prefix.last_token, 15)
    state = self.engine.insert(prefix, self.engine.init_decode_state(), 0)
    state, seen = self._generate(state, steps=20)
    ours = self.engine.insert_group(
      self.engine.prefill_prompt(self.params, tokens[4:]),
      self.engine.init_decode_state(),
      _samples([0], keys=np.asarray(state.sample_key)[:1], temperature=1.0),
    )
    ours, _ = self.engine.generate_chunk(
      self.params, ours, max_steps=100, leave_after=100
    )
    self.assertEqual(_response(state), _response(ours))

  def test_a_prefix_is_never_continued(self):
    with self.assertRaisesRegex(ValueError, 'existing_prefix'):
      self._prefill([5], existing_prefix=self._prefill([5]))

  def test_the_tokenizer_comes_back_as_jetstreams(self):
    tokenizer = self.engine.build_tokenizer(self.engine.get_tokenizer())
    self.assertIsInstance(tokenizer, jetstream_compat.tokenizer_api.Tokenizer)
    tokens, length = tokenizer.encode(
      'dapo', max_prefill_length=self.engine.max_prefill_length
    )
    self.assertEqual((tokens.shape, length), ((16,), 4))
    self.assertEqual(tokenizer.decode(tokens[:length].tolist()), 'dapo')

  def test_parameters_are_those_set_last(self):
    engine = _engine()
    with self.assertRaisesRegex(ValueError, 'set_params'):
      engine.load_params()
    engine.set_params(self.params)
    self.assertIs(engine.load_params(), self.params)

  def test_without_parameters_those_set_last_are_used(self):
    engine = _engine()
    engine.set_params(self.params)
    padded = np.pad(tiny_engine.PROMPTS[1], (0, 5))
    logp = []
    for params in (None, self.params):
      prefix = engine.prefill(
        params=params, padded_tokens=padded, true_length=11
      )
      state = engine.insert(prefix, engine.init_decode_state(), 0)
      # The noise of another insertion is another.
      greedy = state.choice._replace(
        temperature=jnp.zeros_like(state.choice.temperature)
      )
      state, _ = engine.generate(params, state._replace(choice=greedy))
      logp.append(np.asarray(state.out_logp))
    np.testing.assert_array_equal(logp[0], logp[1])
    self.assertLess(logp[0][0, 0], 0)

  def test_the_temperature_is_the_engines(self):
    engine = engine_lib.Engine(
      tiny_engine.model(),
      tiny_engine.Tokenizer(),
      mesh_lib.local_mesh(),
      tiny_engine.LIMITS,
      seed=3,
      serve_temperature=0.25,
    )
    state = engine.insert(
      self._prefill([5, 9]), engine.init_decode_state(), slot=2
    )
    self.assertEqual(state.choice.temperature[2], 0.25)

  def test_nothing_is_compiled_after_the_warm_up_and_noise_begins_anew(self):
    engine = _engine(tiny_engine.LIMITS._replace(prompt_tokens=20))
    engine.set_params(self.params)
    # Another test's engine may have compiled what does not depend on sizes.
    jax.clear_caches()
    with tiny_engine.compilations() as compiled:
      engine.warm_up()
    self.assertNotEmpty(compiled)
    with tiny_engine.compilations() as compiled:
      state = engine.init_decode_state()
      # Both buckets, 16 and 32.
      for slot, length in enumerate((3, 16, 17, 20)):
        prefix = engine.prefill(
          params=None,
          padded_tokens=np.ones(16 if length <= 16 else 32, np.int32),
          true_length=length,
        )
        state = engine.insert(prefix, state, slot=slot)
      state, result = engine.generate(None, state)
      result.convert_to_numpy()
    self.assertEmpty(compiled)
    np.testing.assert_array_equal(
      np.asarray(state.sample_key)[:1],
      token_choice.sample_keys(3, token_choice.Purpose.SERVE, 0, samples=1),
    )


class ParametersTest(absltest.TestCase):
  def test_new_ones_compile_nothing_and_change_the_result(self):
    engine = _engine()

    def responses(seed):
      host = tiny_model.params(tiny_engine.model(), seed=seed)
      params = engine.place(host)
      with tiny_engine.compilations() as compiled:
        prefix = engine.prefill_prompt(params, tiny_engine.PROMPTS[1])
        state = engine.insert_group(
          prefix, engine.init_decode_state(), _samples([0, 1])
        )
        state, _ = engine.generate_chunk(
          params, state, max_steps=100, leave_after=100
        )
        _, result = engine.generate(params, engine.init_decode_state())
        jax.block_until_ready(result.data)
      return _response(state), len(compiled)

    # Another test's engine of these sizes may have compiled the insertion.
    jax.clear_caches()
    first, first_compiled = responses(0)
    second, second_compiled = responses(1)
    again, _ = responses(0)
    # Prefill, insert, chunk, step and the empty state at least.
    self.assertGreaterEqual(first_compiled, 5)
    self.assertEqual(second_compiled, 0)
    self.assertNotEqual(first, second)
    self.assertEqual(first, again)


class PlaceTest(parameterized.TestCase):
  """A policy's parameters, from the update's layout to the engine's."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.engine = tiny_engine.build(devices=8, tensor=2)
    mesh = mesh_lib.update_mesh(jax.devices()[:8], data=1, fsdp=4, tensor=2)
    model = tiny_engine.model()
    cls.before = mesh_lib.shardings(
      model.shapes, model.logical_axes, mesh, mesh_lib.UPDATE_RULES
    )

  def _params(self, seed):
    host = tiny_model.params(tiny_engine.model(), seed=seed)
    host = jax.device_get(host)
    return host, jax.device_put(host, self.before)

  def _assert_same(self, placed, host):
    jax.tree.map(
      np.testing.assert_array_equal, placed | {'block': 0}, host | {'block': 0}
    )
    for i, layer in enumerate(placed['block']):
      jax.tree.map(
        lambda x, whole, i=i: np.testing.assert_array_equal(x, whole[i]),
        layer,
        host['block'],
      )

  def test_values_are_equal_in_the_engines_layout(self):
    host, params = self._params(0)
    placed = self.engine.place(params)
    self._assert_same(placed, host)
    # [L 2, D 32, N 4, H 12]: split 8 ways before, over 2 of 8 devices after.
    shard = lambda weight: weight.addressable_shards[0].data.shape
    self.assertEqual(shard(params['block']['q']), (2, 8, 2, 12))
    self.assertEqual(shard(placed['block'][1]['q']), (32, 2, 12))

  def test_new_parameters_compile_nothing(self):
    self.engine.place(self._params(0)[1])
    host, params = self._params(1)
    with tiny_engine.compilations() as compiled:
      placed = self.engine.place(params)
    self.assertEmpty(compiled)
    self._assert_same(placed, host)

  @parameterized.parameters(1, 8)
  def test_they_outlive_the_trainers(self, devices):
    engine, (host, params) = self.engine, self._params(2)
    if devices == 1:
      engine = tiny_engine.build()
      params = jax.device_put(host, jax.devices()[0])
    placed = engine.place(params)
    update = jax.jit(
      lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0
    )
    update(params)
    self.assertTrue(params['final_norm'].is_deleted())
    self._assert_same(placed, host)

  def test_where_layers_are_scanned_they_are_stacked(self):
    limits = tiny_engine.LIMITS._replace(cache='paged', page_tokens=8)
    host = tiny_engine.params()
    placed = tiny_engine.build(limits=limits).place(host)
    jax.tree.map(np.testing.assert_array_equal, placed, host)

  def test_stacked_ones_are_taken_too(self):
    # Of a caller who did not care: the same responses.
    engine, params = tiny_engine.build(), tiny_engine.params()
    found = []
    for given in (params, engine.place(params)):
      prefix = engine.prefill_prompt(given, tiny_engine.PROMPTS[1])
      state = engine.init_decode_state()
      state = engine.insert_group(prefix, state, _samples([2]))
      state, _ = engine.generate_chunk(given, state, max_steps=9, leave_after=9)
      found.append(_response(state, slot=2))
    self.assertEqual(*found)


class DonationTest(parameterized.TestCase):
  @parameterized.parameters('insert_group', 'generate_chunk', 'generate')
  def test_the_old_cache_is_given_up(self, method):
    engine, params = tiny_engine.build(), tiny_engine.params()
    prefix = engine.prefill_prompt(params, tiny_engine.PROMPTS[0])
    old = engine.insert_group(
      prefix, engine.init_decode_state(), _samples([0] + [8] * 3)
    )
    pointers = lambda state: [
      b.unsafe_buffer_pointer() for b in jax.tree.leaves(state.cache)
    ]
    places = pointers(old)
    act = {
      'insert_group': lambda: engine.insert_group(
        prefix, old, _samples([1] + [8] * 3)
      ),
      'generate_chunk': lambda: engine.generate_chunk(
        params, old, max_steps=2, leave_after=9
      )[0],
      'generate': lambda: engine.generate(params, old)[0],
    }
    new = act[method]()
    for buffer in jax.tree.leaves(old.cache):
      self.assertTrue(buffer.is_deleted())
    # The new one lies where the old one lay.
    self.assertCountEqual(pointers(new), places)
    self.assertFalse(prefix.k.is_deleted())


class ManyDevicesTest(parameterized.TestCase):
  @parameterized.parameters(1, 2)
  def test_the_state_stays_where_it_belongs(self, tensor):
    engine = tiny_engine.build(devices=8, tensor=tensor)
    params = engine.place(tiny_engine.params())
    layout = cache_layout.make(tiny_engine.model(), engine.limits, engine.mesh)
    expected = decode.state_shardings(layout, engine.mesh)

    def check(state):
      same = lambda array, sharding: self.assertTrue(
        array.sharding.is_equivalent_to(sharding, array.ndim)
      )
      jax.tree.map(same, state, expected)
      return state

    state = check(engine.init_decode_state())
    prefix = engine.prefill_prompt(params, tiny_engine.PROMPTS[0])
    state = check(engine.insert_group(prefix, state, _samples([0, 1, 2, 3])))
    check(engine.generate_chunk(params, state, max_steps=2, leave_after=9)[0])


if __name__ == '__main__':
  absltest.main()
