"""A trained model as a server, from its folder until Ctrl-C."""

import os
import time
from typing import NamedTuple

from dapo_jax.data import records, templates
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import engine as engine_lib
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import serve
from dapo_jax.training import interrupt, policies

_USUAL_PROMPT_TOKENS = 1024
_LOOK_S = 0.1


class Sizes(NamedTuple):
  """Of the engine."""

  slots: int
  prompt_tokens: int | None  # None = 1024, or what the context leaves
  response_tokens: int


def run(
  folder: str | os.PathLike,
  *,
  host: str,
  port: int,
  template: str,
  temperature: float,
  seed: int,
  sizes: Sizes,
) -> None:
  """Serves the model of a folder until SIGINT or SIGTERM.

  Prints one line with the address when it can be used. The requests under way
  when the signal comes fail.

  Args:
    folder: what has the model, see `policies.opened`.
    host: name or address of the interface to listen on.
    port: 0 = any that is free.
    template: how a request's text becomes a prompt.
    temperature: of sampling, 0 = greedy.
    seed: of the noise.
    sizes: of the engine.

  Raises:
    ValueError: when there is no model, the sizes exceed its context, it has
      no such template, or the address can't be listened on.
  """
  # Now, not after the minutes that a model may take.
  serve.check_address(host, port)
  with policies.opened(folder) as policy:
    encode = lambda text: templates.encode(
      [records.Message('user', text)], template, policy.tokenizer
    )
    # A model without that template is the user's mistake, not a client's.
    encode('?')
    engine = engine_lib.Engine(
      policy.model,
      policy.tokenizer,
      mesh_lib.local_mesh(),
      _limits(sizes, context_tokens=policy.model.spec.context_tokens),
      seed=seed,
      serve_temperature=temperature,
    )
    engine.set_params(engine.place(policy.load(engine.params_shardings)))
  engine.warm_up()
  with (
    interrupt.Guard() as guard,
    serve.Server(engine, encode, host=host, port=port) as server,
  ):
    place = f'serving {policy.name} on {server.address}'
    print(f'{place}, Ctrl-C stops', flush=True)
    while not guard.requested:
      time.sleep(_LOOK_S)


def _limits(sizes: Sizes, *, context_tokens: int) -> limits_lib.Limits:
  """Returns the sizes of the engine.

  Raises:
    ValueError: when they exceed the context.
  """
  left = context_tokens - sizes.response_tokens
  prompt_tokens = sizes.prompt_tokens or min(_USUAL_PROMPT_TOKENS, left)
  longest = limits_lib.PREFILL_BUCKETS_TOKENS[-1]
  if prompt_tokens > longest:
    raise ValueError(
      f'a prompt of {prompt_tokens} tokens is longer than the engine takes '
      f'({longest}); change --max_prompt_tokens'
    )
  if left < max(1, prompt_tokens):
    raise ValueError(
      f'a prompt of {max(1, prompt_tokens)} and a response of '
      f"{sizes.response_tokens} tokens exceed the model's context "
      f'({context_tokens}); change --max_prompt_tokens or --max_tokens'
    )
  return limits_lib.Limits(sizes.slots, prompt_tokens, sizes.response_tokens)
