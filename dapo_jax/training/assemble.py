"""Builds the parts of a run from its configuration."""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import FrozenConfigDict

from dapo_jax.data import records, templates, tokenizers
from dapo_jax.model import decoder
from dapo_jax.model import spec as spec_lib
from dapo_jax.objective import overlong
from dapo_jax.parallel import job as job_lib
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.rewards import gold_check, graders, reward, verifier_pools
from dapo_jax.rollout import grading
from dapo_jax.rollout import shares as shares_lib
from dapo_jax.sampling import engine as engine_lib
from dapo_jax.training import download, layout, model_folder, sameness
from dapo_jax.training import prompts as prompts_lib


class Parts(NamedTuple):
  """What training, evaluation and sampling have in common."""

  tokenizer: tokenizers.ChatTokenizer
  train_prompts: list[records.Prompt]
  eval_prompts: list[records.Prompt]
  encode: Callable[[records.Prompt], np.ndarray]
  grader: graders.Grader
  judge: grading.Judge
  # Where the weights to start from are; None = random ones.
  model_folder: pathlib.Path | None
  model: decoder.Abstract
  mesh: Mesh
  params_shardings: Any
  # The processes, and whose draws are whose.
  shares: shares_lib.Shares
  engine: engine_lib.Engine
  to_engine: Callable[[decoder.Params], decoder.Params]


def build(
  config: FrozenConfigDict,
  workdir: str | pathlib.Path,
  job: job_lib.Job | None = None,
) -> Parts:
  """Returns the parts of a run; loads no weights.

  Args:
    config: the run's.
    workdir: where this process may write.
    job: the processes of the run; None = this one alone.

  Raises:
    ValueError: for data, a tokenizer or sizes that do not fit together, or
      where those of the processes differ.
  """
  workdir, job = pathlib.Path(workdir), job or job_lib.Job()
  train_prompts, eval_prompts = prompts_lib.load(config)
  grader = _grader(config)
  # Ahead of all that is decided for the data of every process.
  sameness.check_data(
    job, train_prompts, eval_prompts, grader=config.reward.grader
  )
  train_prompts = _winnable(
    config, grader, train_prompts, eval_prompts, workdir, job
  )
  start = _start_folder(config, workdir)
  tokenizer = _tokenizer(config, workdir, start, train_prompts)
  encode = functools.partial(
    _encode, tokenizer=tokenizer, template=config.data.template
  )
  train_prompts = prompts_lib.fitting(
    train_prompts,
    eval_prompts,
    encode,
    max_tokens=config.data.max_prompt_tokens,
    drop=config.data.overlong == 'drop',
  )
  spec = _spec(config, start, tokenizer)
  sameness.check_model(job, tokenizer, encode(train_prompts[0]), spec, start)
  devices = jax.devices()
  mesh = layout.update_mesh(config, devices)
  model = layout.update_model(config, spec, mesh)
  shares = shares_lib.of(job, devices, engine_chips=config.sampler.engine_chips)
  engine_mesh, limits = layout.engine(config, model, devices, shares)
  engine = engine_lib.Engine(
    model,
    tokenizer,
    engine_mesh,
    limits,
    seed=config.seed,
    devices=devices,
  )
  return Parts(
    tokenizer=tokenizer,
    train_prompts=train_prompts,
    eval_prompts=eval_prompts,
    encode=encode,
    grader=grader,
    judge=_judge(config, grader),
    model_folder=start,
    model=model,
    mesh=mesh,
    params_shardings=mesh_lib.shardings(
      model.shapes, model.logical_axes, mesh, mesh_lib.UPDATE_RULES
    ),
    shares=shares,
    engine=engine,
    to_engine=engine.place,
  )


def initial_params(config: FrozenConfigDict, parts: Parts) -> decoder.Params:
  """Returns the weights a run starts from: a folder's, or random ones."""
  if parts.model_folder:
    return model_folder.load(
      parts.model_folder, parts.model, shardings=parts.params_shardings
    )
  return decoder.random_params(
    parts.model, config.seed, shardings=parts.params_shardings
  )


def export(
  folder: str | pathlib.Path, parts: Parts, params: decoder.Params
) -> None:
  """Writes the policy as a Hugging Face folder, its tokenizer included.

  The first process writes; all of them give what they have of the weights.
  """
  params = decoder.without_value_head(params)
  model_folder.save(
    folder,
    parts.model,
    params,
    tokenizer=parts.tokenizer,
    is_writer=parts.shares.job.is_first,
  )


def saved_model(
  config: FrozenConfigDict, workdir: str | pathlib.Path
) -> tuple[tokenizers.ChatTokenizer, decoder.Abstract]:
  """Returns the tokenizer and the model of a run that has begun.

  Raises:
    ValueError: where what it started from is gone.
  """
  workdir = pathlib.Path(workdir)
  start = _start_folder(config, workdir)
  tokenizer = _tokenizer(config, workdir, start, None)
  model = decoder.abstract(
    _spec(config, start, tokenizer),
    compute_dtype=config.model.compute_dtype,
    remat=config.model.remat,
  )
  return tokenizer, model


def trained_tokenizer(
  config: FrozenConfigDict, workdir: str | pathlib.Path
) -> pathlib.Path | None:
  """Returns the file of the tokenizer that a run trains; None if it has one."""
  if config.tokenizer.path or config.model.path:
    return None
  return pathlib.Path(workdir) / 'tokenizer.model'


def _start_folder(config, workdir: pathlib.Path) -> pathlib.Path | None:
  """Returns the folder of the model to start from; None = random weights."""
  if not config.model.path:
    return None
  return download.local_folder(
    config.model.path,
    copies=workdir / 'downloads',
    allowed=config.model.allow_download,
    flag='--config.model.allow_download=true',
  )


def _tokenizer(
  config,
  workdir: pathlib.Path,
  start: pathlib.Path | None,
  prompts: Sequence[records.Prompt] | None,
) -> tokenizers.ChatTokenizer:
  """Returns the tokenizer; one that is to be trained learns from `prompts`."""
  trained = trained_tokenizer(config, workdir)
  if trained is None:
    return tokenizers.load(config.tokenizer.path or start)
  if prompts is not None and not trained.exists():
    texts = [
      templates.render(p.messages, config.data.template) + p.solution
      for p in prompts
    ]
    tokenizers.train_sentencepiece(
      texts, trained, vocab_size=config.tokenizer.vocab_size
    )
  return tokenizers.load(trained)


def _spec(
  config, start: pathlib.Path | None, tokenizer: tokenizers.Tokenizer
) -> spec_lib.Spec:
  if start:
    return model_folder.spec(start, tokenizer)
  return layout.random_spec(config, tokenizer.vocab_size)


def _grader(config: FrozenConfigDict) -> graders.Grader:
  c = config.reward
  return graders.make(
    c.grader,
    verifier_pools.Limits(
      processes=c.verify_processes,
      limit_s=c.verify_s,
      memory_gib=c.verify_memory_gib,
    ),
  )


def _winnable(
  config: FrozenConfigDict,
  grader: graders.Grader,
  train: list[records.Prompt],
  held_out: list[records.Prompt],
  workdir: pathlib.Path,
  job: job_lib.Job,
) -> list[records.Prompt]:
  """Returns the training prompts that can be won, if the others are to go.

  One to evaluate on always stays: a score is of the whole data set. One
  process decides for all: what is judged just in time here may not be there.
  """

  def winnable() -> bytes:
    gold_check.winnable(
      held_out, grader, keep=True, listing=workdir / 'refused_eval_golds.jsonl'
    )
    found = gold_check.winnable(
      train,
      grader,
      keep=config.data.unwinnable == 'keep',
      listing=workdir / 'refused_golds.jsonl',
    )
    return '\n'.join(prompt.id for prompt in found).encode()

  what = 'the golds that are graded'
  ids = set(job.from_first(winnable, what=what).decode().split('\n'))
  return [prompt for prompt in train if prompt.id in ids]


def _judge(config: FrozenConfigDict, grader: graders.Grader) -> grading.Judge:
  limit = config.rollout.max_response_tokens
  c = config.reward
  scale = reward.Scale(right=c.right, wrong=c.wrong, no_answer=c.no_answer)

  def punish(length_tokens: int) -> float:
    if not config.overlong.enabled:
      return 0.0
    return config.overlong.factor * float(
      overlong.soft_punishment(
        length_tokens,
        expected_tokens=limit - config.overlong.cache_tokens,
        cache_tokens=config.overlong.cache_tokens,
      )
    )

  def judge(prompt: records.Prompt, text: str, length_tokens: int):
    return reward.judge(
      grader.grade(text, prompt),
      length_tokens=length_tokens,
      scale=None if grader.is_own else scale,
      overlong=punish,
    )

  return judge


def _encode(
  prompt: records.Prompt, *, tokenizer: tokenizers.ChatTokenizer, template: str
) -> np.ndarray:
  tokens = templates.encode(prompt.messages, template, tokenizer)
  return np.asarray(tokens, np.int32)
