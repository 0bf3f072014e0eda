"""Tests of the scripts in `bench/`, each run as its page says."""

import json
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest

import source_tree
import tiny_model
from dapo_jax.data import tokenizers
from dapo_jax.training import model_folder


def _run(script: str, *flags: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, f'bench/{script}', *flags],
    capture_output=True,
    text=True,
    cwd=source_tree.ROOT,
  )


class CacheGapTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    path = cls.folder / 'tokenizer.model'
    # 4 special tokens, 256 bytes, '1+2=3': 265 pieces.
    tokenizers.train_sentencepiece(['1+2=3'], path, vocab_size=300)
    model = tiny_model.model(vocab_size=265, vocab_rows=320)
    model_folder.save(
      cls.folder / 'model',
      model,
      tiny_model.params(model),
      tokenizer=tokenizers.load(path),
    )

  def _run(self, *flags):
    return _run('cache_gap.py', f'--model={self.folder}/model', *flags)

  def test_an_int8_cache_is_smaller_and_near_float32(self):
    done = self._run('--prompts=2', '--tokens=20', '--reps=1')
    self.assertEqual(done.returncode, 0, done.stderr)
    first, _, *rows = done.stdout.splitlines()
    tokens = int(first.split()[0])
    # 20 of each, or fewer where one ends by itself.
    self.assertBetween(tokens, 2, 40)
    # Name, mean, 99 %, max, likeliest, MiB, time, 'x'.
    found = {row[:20].strip(): row[20:].split() for row in rows}
    self.assertEqual(
      list(found),
      ['float32', 'float32, int8 cache', 'bfloat16', 'bfloat16, int8 cache'],
    )
    self.assertEqual(
      found['float32'][:4] + found['float32'][5:],
      ['0.0000', '0.0000', '0.0000', str(tokens), '1.00', 'x'],
    )
    for name, row in found.items():
      mean, most, largest = map(float, row[:3])
      self.assertEqual(mean > 0, name != 'float32', name)
      self.assertLessEqual(mean, largest)
      self.assertLessEqual(most, largest)
      self.assertBetween(int(row[3]), 0.8 * tokens, tokens)

  def test_more_prompts_than_there_are_are_refused(self):
    done = self._run('--prompts=9')
    self.assertIn('--prompts must be 1 to 8', done.stderr)
    self.assertEqual(done.returncode, 2)


class PagePoolTest(absltest.TestCase):
  def test_pools_are_set_against_the_full_one_and_whole_rows(self):
    done = _run('page_pool.py', '--slots=16', '--prompts=3', '--chunk=256')
    self.assertEqual(done.returncode, 0, done.stderr)
    first, _, *rows = done.stdout.splitlines()
    self.assertStartsWith(first, '48 responses of ')
    # Memory, steps, of full, 'x', used, lost, again, whole rows, 'x', slots.
    rows = [row.split() for row in rows]
    self.assertEqual(
      [row[0] for row in rows], ['100%', '50%', '33%', '25%', '15%']
    )
    self.assertEqual(
      rows[0][2:4] + rows[0][5:], '1.00 x 0.0% 0 1.00 x, 16 slots'.split()
    )
    # 15 % of 16 rows of 325 pages hold 780 pages: 2 whole rows.
    self.assertEqual(rows[-1][-2:], ['2', 'slots'])
    # They are 49,920 tokens, too few for 16 rows of 3,216 on average.
    self.assertGreater(float(rows[-1][5].rstrip('%')), 0)
    self.assertGreater(int(rows[-1][6]), 0)
    for row in rows[1:]:
      # Pages do with fewer steps than as much memory in whole rows.
      self.assertLess(float(row[2]), float(row[7]))


class CheckpointTest(absltest.TestCase):
  def test_seconds_and_bytes_a_second_are_of_one_state(self):
    done = _run('checkpoint.py', '--millions=1', '--rounds=1')
    self.assertEqual(done.returncode, 0, done.stderr)
    first, _, *rows = done.stdout.splitlines()
    # 98 rows of 1,024 in 10 arrays; 12 bytes a parameter.
    self.assertStartsWith(first, '1.0 M parameters, 0.01 GB, ')
    rows = [row.rsplit(maxsplit=2) for row in rows]
    self.assertEqual(
      [row[0] for row in rows],
      ['digests', 'save, the run waits', 'save, until whole', 'restore'],
    )
    seconds, rates = ([float(row[i]) for row in rows] for i in (1, 2))
    self.assertGreaterEqual(seconds[2], seconds[1])
    self.assertGreater(min(rates), 0)


class PackingTest(absltest.TestCase):
  def test_rows_are_full_and_sharing_computes_less(self):
    done = _run('packing.py', '--steps=1')
    self.assertEqual(done.returncode, 0, done.stderr)
    _, *rows = (line.split() for line in done.stdout.splitlines())
    # Lengths, prompts, responses, tokens each, real, least, computed each.
    self.assertEqual(
      [row[:3] for row in rows],
      [
        ['dapo', 'own', '8192'],
        ['dapo', 'shared', '8192'],
        ['demo', 'own', '2048'],
        ['demo', 'shared', '2048'],
      ],
    )
    for row, full in zip(rows, (90, 90, 85, 85), strict=True):
      real, least = (float(x.rstrip('%')) for x in row[4:6])
      self.assertBetween(real, full, 100)
      self.assertLessEqual(least, real)
    for own, shared in (rows[:2], rows[2:]):
      self.assertLess(float(shared[6]), float(own[6]))


class UpdateTest(absltest.TestCase):
  def test_our_side_answers_with_useful_tokens_and_compiles_once(self):
    sizes = dict(
      layers=1, embed=16, heads=2, kv_heads=1, head_dim=8, ffw=16, vocab=32
    )
    sizes |= dict(batch=4, prompt=8, tokens=8, threads=1)
    done = subprocess.run(
      [
        sys.executable,
        'bench/update_worker.py',
        *(f'--{name}={size}' for name, size in sizes.items()),
      ],
      input='ragged 16\nragged 32\n',
      capture_output=True,
      text=True,
      cwd=source_tree.ROOT,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    about, first, second = map(json.loads, done.stdout.splitlines())
    # Embedding 32 x 16; q and out 16 x 16, k and v 16 x 8, three of 16 x 16 in
    # the block; two norms of 16 there, two of 8 for heads, one of 16 behind it.
    parameters = 512 + 512 + 256 + 768 + 32 + 16 + 16
    self.assertEqual(about, {'tool': 'dapo_jax', 'parameters': parameters})
    file = source_tree.ROOT / 'bench/peers/lengths.json'
    known = json.loads(file.read_text())['lengths']
    for found, count in ((first, 16), (second, 32)):
      self.assertEqual(found['tokens'], 8 * count + sum(known[:count]))
      self.assertBetween(found['real_frac'], 0.5, 1)
    self.assertGreater(first['compiled_count'], 0)
    self.assertEqual(second['compiled_count'], 0)


class VerdictsTest(absltest.TestCase):
  def test_its_numbers_are_of_all_pairs(self):
    with tempfile.TemporaryDirectory() as folder:
      problems = pathlib.Path(folder) / 'problems.jsonl'
      problems.write_text(
        ''.join(f'{{"answer": "{i}\\\\sqrt{{2}}"}}\n' for i in range(3, 40))
      )
      done = _run(
        'verdicts.py', f'--problems={problems}', '--pairs=60', '--reps=1'
      )
    self.assertEqual(done.returncode, 0, done.stderr)
    imported, integers, mix = (
      line.split() for line in done.stdout.splitlines()
    )
    self.assertEqual([imported[0], imported[2]], ['import', 's'])
    self.assertLess(float(imported[1]), 3)
    self.assertGreater(float(integers[1].replace(',', '')), 500)
    self.assertGreater(float(mix[1].replace(',', '')), 1)
    # Every second draw is a wrong one; a few of the right ones come twice.
    # The numbers are irrational, so that the wrong ones at least take algebra.
    for line, least, most in ((integers, 30, 30), (mix, 26, 30)):
      self.assertIn('of 60 pairs ', ' '.join(line))
      self.assertBetween(int(line[6]), least, most)
      self.assertEndsWith(' '.join(line), ', 0 have no verdict')

  def test_too_few_answers_are_refused(self):
    with tempfile.TemporaryDirectory() as folder:
      problems = pathlib.Path(folder) / 'problems.jsonl'
      problems.write_text('{"answer": "5"}\n{"answer": "6"}\n')
      done = _run('verdicts.py', f'--problems={problems}', '--reps=1')
    self.assertIn('2 answers are too few for --pairs=8192', done.stderr)
    self.assertEqual(done.returncode, 1)


if __name__ == '__main__':
  absltest.main()
