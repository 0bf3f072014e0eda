"""Tests of `training.origin`."""

import dataclasses
import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.data import records, tokenizers
from dapo_jax.model import spec as spec_lib
from dapo_jax.training import origin

_SPEC = spec_lib.Spec(
  vocab_size=300,
  vocab_rows=320,
  layers=2,
  embed_dim=32,
  heads=4,
  kv_heads=2,
  head_dim=8,
  ffw_dim=64,
  qkv_bias=True,
  tied_head=True,
  rope_theta=1e4,
  norm_eps=1e-6,
  init_std=0.02,
  context_tokens=128,
  rope_scaling=spec_lib.RopeScaling(8.0, 1.0, 4.0, 64),
)


def _prompts(*texts):
  prompts = []
  for text in texts:
    messages = (records.Message('user', text),)
    prompt_id = records.prompt_id('sums', messages, '3')
    prompts.append(records.Prompt(prompt_id, 'sums', messages, '3', ''))
  return prompts


class OriginTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.file = pathlib.Path(folder.name) / 'tokenizer.model'
    self._train('1+2=?')

  def _train(self, text):
    tokenizers.train_sentencepiece([text], self.file, vocab_size=300)

  def of(self, prompts, *, command='train', offset=0, **spec):
    tokenizer = tokenizers.load(self.file)
    return origin.of(
      command,
      tokenizer,
      prompts,
      lambda p: np.asarray(tokenizer.encode(p.messages[0].content)) + offset,
      tokenizer_file=self.file.read_bytes(),
      model=dataclasses.replace(_SPEC, **spec),
    )

  def changes(self, saved, now, *, may_change_data=False):
    return origin.changes(
      saved, now, where='checkpoint 3', may_change_data=may_change_data
    )

  def test_it_comes_back_from_json(self):
    saved = self.of(_prompts('1+2=?'))
    for whole in (
      saved,
      saved._replace(tokenizer_file=None),
      saved._replace(model=None, reference='0123'),
    ):
      text = json.dumps(origin.to_json(whole))
      self.assertEqual(origin.from_json(json.loads(text)), whole)

  def test_the_same_is_no_change(self):
    prompts = _prompts('1+2=?', '2+1=?')
    self.assertEqual(self.changes(self.of(prompts), self.of(prompts)), [])

  def test_another_tokenizer_is_refused(self):
    saved = self.of(_prompts('1+2=?'))
    self._train('abc')
    for may_change in (False, True):
      with self.assertRaisesRegex(
        ValueError,
        rf'^checkpoint 3 was made with another tokenizer \(fingerprint '
        rf'{saved.tokenizer}, now .*--config.tokenizer.path$',
      ):
        self.changes(
          saved, self.of(_prompts('1+2=?')), may_change_data=may_change
        )

  @parameterized.parameters(
    (('1+2=?', '2+1=?', '0+3=?'), 0, '3 training problems'),
    (('1+2=?',), 0, '1 training problems'),
    # Their order is that of the draws.
    (('2+1=?', '1+2=?'), 0, '2 training problems'),
    (('1+2=?', '3+0=?'), 0, '2 training problems'),
    # Another template gives other tokens.
    (('1+2=?', '2+1=?'), 1, '2 training problems'),
  )
  def test_other_problems_are_refused_or_told(self, texts, offset, now):
    saved = self.of(_prompts('1+2=?', '2+1=?'))
    other = self.of(_prompts(*texts), offset=offset)
    with self.assertRaisesRegex(
      ValueError,
      rf'trained on 2 training problems \({saved.prompts}\), the data now '
      rf'gives {now} \({other.prompts}\).*allow_changed_data=true$',
    ):
      self.changes(saved, other)
    [told] = self.changes(saved, other, may_change_data=True)
    self.assertStartsWith(told, 'data: 2 training problems')

  @parameterized.parameters(
    ({'rope_theta': 5e5}, r'rope_theta: 10000\.0 -> 500000\.0'),
    (
      {'norm_eps': 1e-5, 'rope_scaling': None},
      r"norm_eps: 1e-06 -> 1e-05; rope_scaling: \{'factor': 8\.0, .*\} -> None",
    ),
  )
  def test_another_model_is_refused(self, spec, text):
    prompts = _prompts('1+2=?')
    with self.assertRaisesRegex(
      ValueError, rf'^checkpoint 3 is of another model \({text}\).*model\.path$'
    ):
      self.changes(self.of(prompts), self.of(prompts, **spec))

  def test_what_does_not_change_a_model_or_was_not_kept_is_none(self):
    saved = self.of(_prompts('1+2=?'))
    now = self.of(_prompts('1+2=?'), init_std=0.5)
    self.assertEqual(self.changes(saved, now), [])
    self.assertEqual(self.changes(saved._replace(model=None), now), [])

  def test_another_reference_is_refused(self):
    origin.check_reference(None, 'b', where='checkpoint 3')
    origin.check_reference('b', 'b', where='checkpoint 3')
    with self.assertRaisesRegex(
      ValueError,
      r'^checkpoint 3 .* another reference .* a, now b\).*model.path$',
    ):
      origin.check_reference('a', 'b', where='checkpoint 3')

  def test_another_command_is_refused(self):
    prompts = _prompts('1+2=?')
    with self.assertRaisesRegex(
      ValueError, 'is of `dapo-jax sft`, not of `train`; name another --workdir'
    ):
      self.changes(self.of(prompts, command='sft'), self.of(prompts))


if __name__ == '__main__':
  absltest.main()
