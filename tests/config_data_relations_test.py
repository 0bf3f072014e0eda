"""Tests of config_data_relations.py: data, grader and evaluation."""

from absl.testing import absltest, parameterized

from configs import base
from dapo_jax import config_data_relations, config_fault, config_rules
from dapo_jax.rewards import graders


def _config(changes):
  """Returns the defaults with `changes`, which no parser has looked at."""
  config = base.get_config()
  config.update_from_flattened_dict(changes)
  return config


class RulesCase(parameterized.TestCase):
  def assert_refused(self, changes, message):
    """Checks that the changed defaults are refused in these words."""
    with self.assertRaises(config_fault.ConfigError) as caught:
      config_data_relations.check(_config(changes))
    self.assertEqual(str(caught.exception), message)


class TogetherTest(RulesCase):
  @parameterized.parameters(
    (
      {'reward.grader': 'math'},
      'reward.grader (math) must be one of equivalence, equivalence_box, dapo, '
      'dapo_strict_box, MODULE:FUNCTION or FILE.py:FUNCTION; change '
      '--config.reward.grader',
    ),
    (
      {'data.template': 'dapo', 'reward.grader': 'equivalence_box'},
      'data.template dapo asks for a line `Answer:`, and reward.grader '
      'equivalence_box reads boxes alone; change --config.data.template or '
      '--config.reward.grader',
    ),
    (
      {
        'data.template': 'chat_boxed',
        'reward.grader': 'dapo',
        'tokenizer.path': 'd',
      },
      'data.template chat_boxed asks for a box, and reward.grader dapo reads '
      'the line `Answer:` alone; change --config.data.template or '
      '--config.reward.grader',
    ),
    (
      {'reward.grader': 'my.py:f', 'reward.no_answer': -2.0},
      'reward.no_answer (-2.0) must be none where reward.grader is a function '
      "of yours (my.py:f): its score is the reward, whether there's an answer "
      'or not; change --config.reward.no_answer or --config.reward.grader',
    ),
  )
  def test_the_grader_reads_what_is_asked_for(self, changes, message):
    self.assert_refused(changes, message)

  @parameterized.parameters(
    {'reward.grader': 'my.py:f'},
    {'reward.grader': 'a.b:f', 'data.template': 'boxed'},
    {'reward.grader': 'dapo', 'data.template': 'boxed'},
    {'reward.grader': 'equivalence_box', 'data.template': 'plain'},
  )
  def test_graders_that_go_with_a_template(self, **changes):
    config_rules.validate(_config(changes))

  def test_the_names_are_those_of_the_graders(self):
    self.assertEqual(config_data_relations._GRADERS, graders.NAMES)

  def test_greedy_samples_are_all_the_same(self):
    changes = {'eval.temperature': 0.0}
    self.assert_refused(
      changes,
      'eval.samples_per_prompt (8) must be 1 at eval.temperature 0: greedy '
      'samples of a problem are all the same; change '
      '--config.eval.samples_per_prompt or --config.eval.temperature',
    )
    config_rules.validate(_config(changes | {'eval.samples_per_prompt': 1}))

  def test_the_fewest_terms_are_at_most_the_most(self):
    self.assert_refused(
      {'data.arithmetic.min_terms': 3},
      'data.arithmetic.min_terms (3) must be at most data.arithmetic.terms '
      '(2); change --config.data.arithmetic.min_terms or '
      '--config.data.arithmetic.terms',
    )

  def test_chat_is_the_form_of_a_model_that_exists(self):
    changes = {'data.template': 'chat'}
    self.assert_refused(
      changes,
      'data.template chat is the form of a model that exists: it needs '
      'model.path, or a tokenizer.path; change --config.data.template or '
      '--config.model.path or --config.tokenizer.path',
    )
    for path in ('model.path', 'tokenizer.path'):
      config_rules.validate(_config(changes | {path: 'folder'}))

  def test_prompts_come_from_somewhere(self):
    self.assert_refused(
      {'data.source': ''},
      "data.source ('') must name a file of problems, or be arithmetic; change "
      '--config.data.source',
    )

  def test_file_of_prompts_needs_a_file_to_evaluate_on(self):
    self.assert_refused(
      {'data.source': 'train.jsonl'},
      'eval.source must name a file of problems: data.source (train.jsonl) '
      'holds no problems out for evaluation; change --config.eval.source',
    )

  def test_a_mixture_takes_the_place_of_the_source(self):
    mixed = (('arithmetic', 3), ('a.jsonl', 1))
    self.assert_refused(
      {'data.mixture': mixed},
      "data.source (arithmetic) must be '' where data.mixture names the "
      'sources; change --config.data.source or --config.data.mixture',
    )
    config_rules.validate(_config({'data.source': '', 'data.mixture': mixed}))

  @parameterized.parameters(
    (
      (('arithmetic', 1), ('', 1)),
      "data.mixture must not name the source ''",
    ),
    (
      (('arithmetic', 1), ('a', 1), ('arithmetic', 2)),
      "data.mixture must name each source once, not 'arithmetic' 2 times",
    ),
  )
  def test_a_mixture_names_each_source_once(self, mixed, message):
    self.assert_refused(
      {'data.source': '', 'data.mixture': mixed},
      f'{message}; change --config.data.mixture',
    )

  def test_a_mixture_has_no_tail(self):
    changes = {'data.source': '', 'data.mixture': (('arithmetic', 1),)}
    self.assert_refused(
      changes | {'data.tail': 'drop'},
      'data.tail (drop) must be keep where data.mixture is given: the epochs '
      'of its sources do not end together; change --config.data.tail or '
      '--config.data.mixture',
    )
    config_rules.validate(_config({'data.tail': 'drop'}))

  def test_a_mixture_of_files_needs_a_file_to_evaluate_on(self):
    mixed = (('a.jsonl', 1), ('b.jsonl', 1))
    self.assert_refused(
      {'data.source': '', 'data.mixture': mixed},
      'eval.source must name a file of problems: data.mixture (a.jsonl, '
      'b.jsonl) holds no problems out for evaluation; change '
      '--config.eval.source',
    )

  @parameterized.parameters(
    {'data.source': 'task:gcd'},
    {'data.source': 'a.jsonl', 'eval.source': 'task:gcd'},
  )
  def test_tasks_must_hold_problems_out(self, **changes):
    config_rules.validate(_config(changes))
    self.assert_refused(
      changes | {'data.task.held_out_frac': 0.0},
      'data.task.held_out_frac (0.0) must be above 0, or eval.source name a '
      'file of problems; change --config.data.task.held_out_frac or '
      '--config.eval.source',
    )

  def test_one_source_of_a_mixture_may_hold_nothing_out(self):
    changes = {
      'data.source': '',
      'data.mixture': (('arithmetic', 1), ('task:gcd', 1)),
      'data.arithmetic.held_out_frac': 0.0,
    }
    config_rules.validate(_config(changes))
    self.assert_refused(
      changes | {'data.task.held_out_frac': 0.0},
      'data.arithmetic.held_out_frac or data.task.held_out_frac (0.0) must be '
      'above 0, or eval.source name a file of problems; change '
      '--config.data.arithmetic.held_out_frac or '
      '--config.data.task.held_out_frac or --config.eval.source',
    )

  def test_arithmetic_must_hold_problems_out(self):
    self.assert_refused(
      {'data.arithmetic.held_out_frac': 0.0},
      'data.arithmetic.held_out_frac (0.0) must be above 0, or eval.source '
      'name a file of problems; change --config.data.arithmetic.held_out_frac '
      'or --config.eval.source',
    )


if __name__ == '__main__':
  absltest.main()
