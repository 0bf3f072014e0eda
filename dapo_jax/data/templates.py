"""How a conversation becomes the text that the model continues.

Host only.
"""

from collections.abc import Callable, Sequence

from dapo_jax.data import records, tokenizers

NAMES = ('plain', 'dapo', 'boxed', 'chat', 'chat_dapo', 'chat_boxed')

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
# Of a chat: its system message.
_BOXED_SYSTEM = (
  'Solve what you are asked one step after the other. Write the final answer'
  ' in a box: \\boxed{...}'
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
  line break.

  'chat' is the form that the model was trained on, which comes with its
  tokenizer; 'chat_dapo' is that with DAPO's form around the last message, and
  'chat_boxed' that with a system message that asks for `\boxed{...}` before
  the others, as the published runs of the two papers have them.

  Args:
    messages: the conversation up to the response.
    template: one of `NAMES`.
    chat_text: the tokenizer's, needed for chats.

  Raises:
    ValueError: there is no such template, or the tokenizer has none.
  """
  if is_chat(template) and template in NAMES:
    assert chat_text is not None, 'the tokenizer knows the form of a chat'
    return chat_text(_turns(messages, template))
  problem = '\n'.join(message.content for message in messages)
  if template == 'plain':
    return f'{problem}\n'
  if template == 'dapo':
    return f'{_dapo(problem)}\n'
  if template == 'boxed':
    return f'{_BOXED_INSTRUCTION}\n\n{problem}\n'
  raise ValueError(
    f'the template must be one of {", ".join(NAMES)}, got {template!r};'
    ' change --config.data.template'
  )


def is_chat(template: str) -> bool:
  """Says whether the tokenizer has a part in a template."""
  return template.startswith('chat')


def encode(
  messages: Sequence[records.Message],
  template: str,
  tokenizer: tokenizers.ChatTokenizer,
) -> list[int]:
  """Returns the token ids of a prompt; see `render`."""
  text = render(messages, template, chat_text=tokenizer.chat_text)
  if is_chat(template):
    return tokenizer.encode_chat(text)
  return tokenizer.encode(text)


def _dapo(problem: str) -> str:
  """Returns a problem between DAPO's instruction and its reminder."""
  return f'{_INSTRUCTION}\n\n{problem}\n\n{_REMINDER}'


def _turns(
  messages: Sequence[records.Message], template: str
) -> list[records.Message]:
  """Returns the turns of a chat, with what is asked for."""
  if template == 'chat_dapo':
    *before, last = messages
    return [*before, last._replace(content=_dapo(last.content))]
  if template == 'chat_boxed':
    return _with_system(messages, _BOXED_SYSTEM)
  return list(messages)


def _with_system(
  messages: Sequence[records.Message], request: str
) -> list[records.Message]:
  """Returns a chat with a request in its one system message."""
  first, *rest = messages
  if first.role == 'system':
    return [first._replace(content=f'{first.content}\n{request}'), *rest]
  return [records.Message('system', request), first, *rest]
