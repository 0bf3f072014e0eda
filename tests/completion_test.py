"""Tests of `training.completion`."""

import contextlib
import io
import pathlib
import shutil
import tempfile

from absl.testing import absltest, parameterized

import tiny_run
from dapo_jax.sampling import token_choice
from dapo_jax.training import completion, loop


def _run(
  folder, prompt='3+4=?', *, temperature=0.0, filters=None, **changes
) -> str:
  choice = token_choice.Choice(temperature, **(filters or {}))
  options = dict(template='plain', choice=choice, max_tokens=8, seed=0)
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    completion.run(folder, prompt, **{**options, **changes})
  return printed.getvalue()


class CompletionTest(parameterized.TestCase):
  def test_it_answers_as_it_was_taught(self):
    self.assertRegex(_run(tiny_run.model_folder()), r'\AAnswer: \d+\n\Z')

  def test_a_workdir_holds_its_model(self):
    model = pathlib.Path(tiny_run.model_folder())
    self.assertEqual(_run(model.parent), _run(model))

  def test_the_seed_chooses_the_sample(self):
    sample = lambda seed: _run(
      tiny_run.model_folder(), temperature=2.0, seed=seed
    )
    texts = {seed: sample(seed) for seed in range(4)}
    self.assertGreater(len(set(texts.values())), 1)
    self.assertEqual(sample(2), texts[2])

  def test_filters_choose_among_the_likeliest(self):
    greedy = _run(tiny_run.model_folder())
    for filters in (dict(top_k=1), dict(top_p=1e-6), dict(min_p=1.0)):
      found = _run(tiny_run.model_folder(), temperature=9.0, filters=filters)
      self.assertEqual(found, greedy)
    self.assertNotEqual(_run(tiny_run.model_folder(), temperature=9.0), greedy)

  def test_no_more_tokens_than_asked_for(self):
    whole = _run(tiny_run.model_folder())
    cut = _run(tiny_run.model_folder(), max_tokens=2)
    self.assertLess(len(cut), len(whole))
    self.assertStartsWith(whole, cut.rstrip('\n'))

  def test_a_run_that_is_not_done_answers_from_its_newest_checkpoint(self):
    with tempfile.TemporaryDirectory() as folder:
      workdir = pathlib.Path(folder) / 'run'
      config = tiny_run.policy_config({'train.steps': 1, 'eval.prompts': 2})
      with tiny_run.devices(1), contextlib.redirect_stdout(io.StringIO()):
        loop.train(config, str(workdir))
      expected = _run(workdir, temperature=2.0)
      shutil.rmtree(workdir / 'model')
      for source in (
        workdir,
        workdir / 'checkpoints',
        workdir / 'checkpoints/1',
      ):
        self.assertEqual(_run(source, temperature=2.0), expected)

  def test_a_folder_without_a_model_is_refused(self):
    with tempfile.TemporaryDirectory() as folder:
      with self.assertRaisesRegex(
        ValueError, r'no model in .*model/config\.json.*--model'
      ):
        _run(folder)


if __name__ == '__main__':
  absltest.main()
