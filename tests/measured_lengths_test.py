"""Tests of `planning.measured_lengths`."""

import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from dapo_jax.planning import measured_lengths, workload

_LENGTHS = workload.Lengths(
  prompt_tokens=10,
  response_tokens=100.0,
  sigma=0.0,
  longest_tokens=400,
  kept_frac=0.5,
)


class MetricsTest(parameterized.TestCase):
  def _file(self, text):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    file = pathlib.Path(folder.name, 'metrics.jsonl')
    file.write_text(text)
    return str(file)

  @parameterized.parameters(
    (500.0, 0.5, 'length_mean_tokens of 500, which must be from 1 to 400'),
    (0.5, 0.5, 'length_mean_tokens of 0.5'),
    (50.0, 1.7, 'kept_frac of 1.7, which must be from 0 to 1'),
    (50.0, -3.0, 'kept_frac of -3'),
  )
  def test_metrics_of_another_configuration_are_refused(
    self, length, kept, words
  ):
    row = {'response/length_mean_tokens': length, 'filter/kept_frac': kept}
    with self.assertRaisesRegex(ValueError, words):
      measured_lengths.of_metrics(self._file(json.dumps(row) + '\n'), _LENGTHS)

  def test_metrics_say_what_a_run_has(self):
    file = self._file(
      '\n'.join(
        json.dumps(row)
        for row in (
          {'step': 0, 'eval/accuracy_frac': 0.5},
          {'response/length_mean_tokens': 999.0, 'filter/kept_frac': 1.0},
          {'response/length_mean_tokens': 50.0, 'filter/kept_frac': 0.2},
          {'response/length_mean_tokens': 70.0, 'filter/kept_frac': 0.4},
        )
      )
    )
    found = measured_lengths.of_metrics(file, _LENGTHS, last=2)
    self.assertEqual(found.response_tokens, 60)
    self.assertAlmostEqual(found.kept_frac, 0.3)
    self.assertEqual(found.prompt_tokens, 10)

  def test_metrics_without_a_step_are_refused(self):
    file = self._file('{"step": 0}\n')
    with self.assertRaisesRegex(ValueError, '--metrics .* has no step'):
      measured_lengths.of_metrics(file, _LENGTHS)
    with self.assertRaisesRegex(ValueError, 'there is none'):
      measured_lengths.of_metrics(file + '.not', _LENGTHS)

  @parameterized.parameters(
    'not json\n',
    '{"response/length_mean_tokens": 5}\nbroken\n'
    '{"response/length_mean_tokens": 5}\n',
    '\x00\x01',
  )
  def test_what_is_no_metrics_is_refused(self, text):
    with self.assertRaisesRegex(ValueError, r'line \d is not JSON'):
      measured_lengths.of_metrics(self._file(text), _LENGTHS)

  @parameterized.parameters(
    'NaN', 'null', '"many"', '0', '-1', 'Infinity', 'true'
  )
  def test_a_length_that_is_none_is_no_step(self, value):
    row = f'{{"response/length_mean_tokens": {value}}}\n'
    with self.assertRaisesRegex(ValueError, 'has no step'):
      measured_lengths.of_metrics(self._file(row + '[1]\n'), _LENGTHS)
    good = '{"response/length_mean_tokens": 50, "filter/kept_frac": NaN}\n'
    found = measured_lengths.of_metrics(self._file(row + good), _LENGTHS)
    self.assertEqual((found.response_tokens, found.kept_frac), (50, 0.5))

  def test_a_last_line_may_be_half_written(self):
    file = self._file('{"response/length_mean_tokens": 50}\n{"response/len')
    found = measured_lengths.of_metrics(file, _LENGTHS)
    self.assertEqual(found.response_tokens, 50)


if __name__ == '__main__':
  absltest.main()
