"""One response of a trained model, for a look at it."""

import pathlib

import numpy as np

from dapo_jax.data import records, templates
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import engine as engine_lib
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import scheduler, token_choice
from dapo_jax.training import policies


def run(
  folder: str | pathlib.Path,
  prompt: str,
  *,
  template: str,
  choice: token_choice.Choice,
  max_tokens: int,
  seed: int,
) -> None:
  """Prints a response of the model in a folder.

  Args:
    folder: what has the model, see `policies.opened`.
    prompt: what the user says.
    template: how the prompt becomes text.
    choice: how its tokens are drawn.
    max_tokens: longest response, [tokens].
    seed: of the noise.

  Raises:
    ValueError: when there is no model, or the prompt is too long for it.
  """
  with policies.opened(folder) as policy:
    tokenizer = policy.tokenizer
    messages = [records.Message('user', prompt)]
    tokens = np.asarray(
      templates.encode(messages, template, tokenizer), np.int32
    )
    engine = engine_lib.Engine(
      policy.model,
      tokenizer,
      mesh_lib.local_mesh(),
      limits_lib.Limits(
        slots=1, prompt_tokens=len(tokens), response_tokens=max_tokens
      ),
      seed=seed,
    )
    params = engine.place(policy.load(engine.params_shardings))
  sampling = scheduler.Sampling(
    purpose=token_choice.Purpose.SERVE,
    seed=seed,
    choice=choice,
    limit_tokens=max_tokens,
    chunk_tokens=max_tokens,
  )
  request = scheduler.Request(0, tokens, 1)
  groups = scheduler.generate(
    engine, params, [request], sampling, report=lambda _: None
  )
  [(_, [completion])] = groups
  print(tokenizer.decode(completion.tokens.tolist()))
