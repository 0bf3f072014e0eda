"""Held-out accuracy: avg@k sampled, or greedy."""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import FrozenConfigDict

from dapo_jax.data import records
from dapo_jax.model import decoder
from dapo_jax.parallel import job as job_lib
from dapo_jax.rollout import collect, grading, sharing
from dapo_jax.sampling import scheduler, stop_strings, token_choice
from dapo_jax.training import (
  assemble,
  checkpoint,
  resuming,
  run_folder,
  sameness,
)


class Protocol(NamedTuple):
  """How accuracy is measured."""

  samples_per_prompt: int
  choice: token_choice.Choice
  seed: int
  limit_tokens: int
  chunk_tokens: int
  wait_s: float  # most seconds to wait for verdicts after the last response
  stop_strings: tuple[str, ...] = ()


def run(
  config: FrozenConfigDict, workdir: str, job: job_lib.Job | None = None
) -> None:
  """Prints the held-out accuracy of a run's newest policy, greedy and sampled.

  The policy is the newest checkpoint's of WORKDIR, with the settings that its
  run was made with; only `eval`, `sampler`, `mesh`, `reward.wait_s`,
  `checkpoint.folder`, and `model.path` and `tokenizer.path` where they are
  given, are this call's. Without a checkpoint it is the model
  that the configuration names. Writes WORKDIR/eval.json.

  Args:
    config: the run's.
    workdir: its folder.
    job: the processes, of which the first prints; None = this one alone.

  Raises:
    ValueError: there is nothing to evaluate, or the processes differ.
  """
  folder, job = pathlib.Path(workdir), job or job_lib.Job()
  sameness.check_commands(job, 'eval', config)
  with checkpoint.open_store(
    folder, keep=None, folder=config.checkpoint.folder, read_only=True, job=job
  ) as store:
    sameness.check_checkpoint(job, store.latest_step())
    if not config.model.path and store.latest_step() is None:
      raise ValueError(
        f'there is nothing to evaluate: {store.folder} holds no whole '
        'checkpoint and no model is named; change --workdir or '
        '--config.model.path, or --config.checkpoint.folder'
      )
    config = _of_run(config, store)
    own = run_folder.of_process(folder, job)
    resuming.bring_tokenizer(config, own, store.saved_origin())
    parts = assemble.build(config, own, job)
    store.check_model(parts.tokenizer, parts.model.spec)
    params, step = store.restore_params(
      parts.model.shapes, parts.params_shardings
    ) or (assemble.initial_params(config, parts), 0)
  sampled = protocol(config)
  greedy = sampled._replace(
    choice=token_choice.Choice(temperature=0.0), samples_per_prompt=1
  )
  engine_params = parts.to_engine(params)
  results = {'step': step}
  for name, how in (('greedy', greedy), ('sampled', sampled)):
    results[name] = measure(parts, engine_params, how, check=lambda: None)
    if job.is_first:
      print(f'{name:8} {summary_line(results[name], step=step)}', flush=True)
  if job.is_first:
    _write(folder, results)


def _write(folder: pathlib.Path, results: dict[str, Any]) -> None:
  """Writes WORKDIR/eval.json."""
  folder.mkdir(parents=True, exist_ok=True)
  part = folder / 'eval.json.part'
  part.write_text(json.dumps(results, indent=2) + '\n')
  part.replace(folder / 'eval.json')
  print(f'written to {folder / "eval.json"}')


def _of_run(
  config: FrozenConfigDict, store: checkpoint.Store
) -> FrozenConfigDict:
  if store.latest_step() is None:
    return config
  now, saved = config.to_dict(), store.saved_config()
  own = {section: now[section] for section in ('eval', 'sampler', 'mesh')}
  own['reward'] = saved['reward'] | {'wait_s': now['reward']['wait_s']}
  # They may have moved since; what is in them is compared.
  for section in ('model', 'tokenizer'):
    path = now[section]['path'] or saved[section]['path']
    own[section] = saved[section] | {'path': path}
  return FrozenConfigDict(saved | own)


def protocol(config: FrozenConfigDict) -> Protocol:
  """Returns the protocol a configuration asks for."""
  return Protocol(
    samples_per_prompt=config.eval.samples_per_prompt,
    choice=token_choice.Choice(
      temperature=config.eval.temperature,
      top_k=config.eval.top_k,
      top_p=config.eval.top_p,
      min_p=config.eval.min_p,
    ),
    seed=config.seed,
    limit_tokens=config.rollout.max_response_tokens,
    chunk_tokens=config.sampler.chunk_tokens,
    wait_s=config.reward.wait_s,
    stop_strings=tuple(config.rollout.stop_strings),
  )


def measure(
  parts: assemble.Parts,
  engine_params: decoder.Params,
  protocol: Protocol,
  *,
  check: Callable[[], None],
) -> dict[str, int | float]:
  """Returns the `eval/` metrics of the evaluation prompts.

  The noise of a sample depends on the problem's number and the sample's, not
  on the step: two evaluations of a run differ by the policy alone. `check` is
  called after every decode chunk and during the wait for verdicts; what it
  raises ends the evaluation.
  """
  draws = [
    records.Draw(i, 0, prompt) for i, prompt in enumerate(parts.eval_prompts)
  ]
  sampling = scheduler.Sampling(
    purpose=token_choice.Purpose.EVAL,
    seed=protocol.seed,
    choice=protocol.choice,
    limit_tokens=protocol.limit_tokens,
    chunk_tokens=protocol.chunk_tokens,
    find_stop=stop_strings.finder(
      parts.tokenizer.decode, protocol.stop_strings
    ),
  )

  def own_groups(draws: Sequence[records.Draw]) -> list[records.Group]:
    return collect.collect(
      draws,
      encode=parts.encode,
      sample=lambda requests: scheduler.generate(
        parts.engine,
        engine_params,
        requests,
        sampling,
        report=lambda _: parts.shares.hosts > 1 or check(),
      ),
      decode=stop_strings.decoder(
        parts.tokenizer.decode, protocol.stop_strings
      ),
      grading=grading.Grading(
        parts.judge, protocol.wait_s, on_wait=lambda _: check()
      ),
      samples_per_prompt=protocol.samples_per_prompt,
      shares=parts.shares,
    )

  return metrics(
    sharing.everywhere(
      draws,
      own_groups,
      shares=parts.shares,
      samples_per_prompt=protocol.samples_per_prompt,
      encode=parts.encode,
      what='the evaluation',
    )
  )


def metrics(groups: Sequence[records.Group]) -> dict[str, int | float]:
  """Returns accuracy (mean over problems of the mean over samples) and more.

  The standard error is over problems. `eval/pass_frac` is the share of
  problems that at least one of the samples solves.
  """
  correct = np.stack([g.correct for g in groups]).astype(np.float64)
  by_problem = correct.mean(axis=1)
  lengths = np.concatenate([records.lengths_tokens(g) for g in groups])
  ended = np.array([not r.is_truncated for g in groups for r in g.responses])
  result = {
    'eval/accuracy_frac': float(by_problem.mean()),
    'eval/pass_frac': float((by_problem > 0).mean()),
    'eval/length_mean_tokens': float(lengths.mean()),
    'eval/truncated_frac': float(1.0 - ended.mean()),
    'eval/prompts_count': len(groups),
    'eval/samples_per_prompt_count': correct.shape[1],
  }
  if len(groups) > 1:
    result['eval/accuracy_stderr_frac'] = float(
      by_problem.std(ddof=1) / np.sqrt(len(groups))
    )
  return result


def summary_line(metrics: dict[str, int | float], *, step: int) -> str:
  """Returns the result as one line to read."""
  error = metrics.get('eval/accuracy_stderr_frac', 0.0)
  return (
    f'held-out accuracy after step {step}: '
    f'{metrics["eval/accuracy_frac"]:.1%} +- {error:.1%} '
    f'(avg@{metrics["eval/samples_per_prompt_count"]}, '
    f'{metrics["eval/prompts_count"]} problems)'
  )
