"""How a conversation becomes the text that the model continues.

Host only.
"""

from collections.abc import Callable, Sequence

from dapo_jax.data import records, tokenizers

NAMES = ('plain', 'dapo', 'boxed', 'chat')

ChatText = Callable[[Sequence[records.Message]], str]

# Both ask for the line that `dapo_jax.rewards.dapo_math` reads.
_INSTRUCTION = (
  'Work through the math problem below step by step. Finish with a line of'
  ' the form Answer: $Answer, where $Answer stands for the result.'
)
_REMINDER = (
  'Do not forget to write the result on a last line of its own that begins'
  ' with "Answer:".'
)

# Names the line as well, so that whoever looks for either finds the answer.
_BOXED_INSTRUCTION = (
  'Think the problem below through, one step after the other. Write the final'
  ' answer in a box, on a last line of the form Answer: \\boxed{...}'
)


def render(
  messages: Sequence[records.Message],
  template: str,
  *,
  chat_text: ChatText | None = None,
) -> str:
  r"""Returns the text of a prompt.

  'plain' is the contents of the messages, each on its own line. 'dapo' has
  DAPO's form around them: an instruction, the problem and a reminder, a blank
  line between, which ask for a last line `Answer: ...`. 'boxed' has one
  instruction before them, which asks for `\boxed{...}` on such a line, as
  Qwen's and DCPO's prompts ask for a box. The words are ours, the requests
  those of the papers' data. Roles do not show in these, and each ends with a
  line break. 'chat' is the form that the model was trained on, which comes
  with its tokenizer.

  Args:
    messages: the conversation up to the response.
    template: one of `NAMES`.
    chat_text: the tokenizer's, needed for 'chat'.

  Raises:
    ValueError: there is no such template, or the tokenizer has none.
  """
  if template == 'chat':
    assert chat_text is not None, 'the tokenizer knows the form of a chat'
    return chat_text(messages)
  problem = '\n'.join(message.content for message in messages)
  if template == 'plain':
    return f'{problem}\n'
  if template == 'dapo':
    return f'{_INSTRUCTION}\n\n{problem}\n\n{_REMINDER}\n'
  if template == 'boxed':
    return f'{_BOXED_INSTRUCTION}\n\n{problem}\n'
  raise ValueError(
    f'the template must be one of {", ".join(NAMES)}, got {template!r};'
    ' change --config.data.template'
  )


def encode(
  messages: Sequence[records.Message],
  template: str,
  tokenizer: tokenizers.ChatTokenizer,
) -> list[int]:
  """Returns the token ids of a prompt; see `render`."""
  text = render(messages, template, chat_text=tokenizer.chat_text)
  if template == 'chat':
    return tokenizer.encode_chat(text)
  return tokenizer.encode(text)
