"""Tests of `dapo_jax.data.chat_template`."""

import datetime
import json
import pathlib
import tempfile

import tokenizers as hf_tokenizers
from absl.testing import absltest, parameterized

from dapo_jax.data import chat_template, records

try:
  import transformers
except ImportError:
  transformers = None

_MESSAGES = [
  records.Message('system', 'Be brief.'),
  records.Message('user', '  1 < 2?\n'),
  records.Message('assistant', 'Yes & no: "é".'),
  records.Message('user', 'Why {{ x }}?'),
]
_CHATML = (
  "{% for message in messages %}{% if loop.first and message['role'] != "
  "'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
  "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
  "'<|im_end|>' + '\n' }}{% endfor %}"
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# What templates use of their surroundings: blocks on lines of their own,
# loop controls, special tokens, tools that are not there, JSON.
_LONG = """\
{{- bos_token }}
{%- if tools %}
tools
{%- endif %}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% continue %}
    {% endif %}
    {% generation %}
{{ message.content | trim | tojson }}{{ eos_token }}
    {% endgeneration %}
{% endfor %}
{%- if add_generation_prompt %}{{ '[go]' }}{% endif %}
"""


class RenderTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def _config(self, template, **more):
    eos = {'__type': 'AddedToken', 'content': '</s>'}
    config = {'bos_token': '<s>', 'eos_token': eos} | more
    (self.folder / 'tokenizer_config.json').write_text(
      json.dumps(config | {'chat_template': template})
    )

  def _render(self, template, messages=_MESSAGES):
    self._config(template)
    return chat_template.render(messages, self.folder)

  def test_chatml_by_hand(self):
    self.assertEqual(
      self._render(_CHATML, [records.Message('user', 'Hi')]),
      '<|im_start|>system\nBe kind.<|im_end|>\n'
      '<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n',
    )

  @parameterized.parameters(_CHATML, _LONG)
  @absltest.skipIf(transformers is None, 'needs transformers')
  def test_is_what_transformers_renders(self, template):
    self._config(template, tokenizer_class='PreTrainedTokenizerFast')
    hf_tokenizers.Tokenizer(
      hf_tokenizers.models.WordLevel({'a': 0}, unk_token='a')
    ).save(str(self.folder / 'tokenizer.json'))
    theirs = transformers.AutoTokenizer.from_pretrained(
      self.folder
    ).apply_chat_template(
      [message._asdict() for message in _MESSAGES],
      tokenize=False,
      add_generation_prompt=True,
    )
    self.assertEqual(chat_template.render(_MESSAGES, self.folder), theirs)
    self.assertIn('Why {{ x }}?', theirs)

  def test_the_file_of_its_own_comes_first(self):
    self._config('old')
    (self.folder / 'chat_template.jinja').write_text('new')
    self.assertEqual(chat_template.render(_MESSAGES, self.folder), 'new')

  def test_of_several_the_default_is_meant(self):
    named = [('tool_use', 'no'), ('default', 'yes')]
    template = [{'name': n, 'template': t} for n, t in named]
    self.assertEqual(self._render(template), 'yes')

  def test_a_date_can_be_asked_for(self):
    year = self._render("{{ strftime_now('%Y') }}")
    self.assertLessEqual(abs(int(year) - datetime.date.today().year), 1)

  def test_what_the_template_refuses_is_told(self):
    with self.assertRaisesRegex(
      ValueError, r"conversation \['system', .*no system.*--config.data.templ"
    ):
      self._render("{{ raise_exception('no system role') }}")

  @parameterized.parameters(
    '{% for %}',
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append('x') }}",
    '{{ 1 / 0 }}',
  )
  def test_a_broken_or_hostile_template_is_refused(self, template):
    with self.assertRaisesRegex(ValueError, 'cannot render the conversation'):
      self._render(template)

  def test_a_tokenizer_without_one_is_an_error_that_says_so(self):
    with self.assertRaisesRegex(
      ValueError, 'has no chat template.*--config.data.template'
    ):
      chat_template.render(_MESSAGES, self.folder)


if __name__ == '__main__':
  absltest.main()
