"""How a conversation becomes the text that the model continues.

Host only.
"""

from collections.abc import Sequence

from dapo_jax.data import records

NAMES = ('plain', 'dapo')

# Both ask for the line that `dapo_jax.rewards.dapo_math` reads.
_INSTRUCTION = (
  'Work through the math problem below step by step. Finish with a line of'
  ' the form Answer: $Answer, where $Answer stands for the result.'
)
_REMINDER = (
  'Do not forget to write the result on a last line of its own that begins'
  ' with "Answer:".'
)


def render(messages: Sequence[records.Message], template: str) -> str:
  """Returns the text of a prompt; it ends with a line break.

  'plain' is the contents of the messages, each on its own line. 'dapo' has
  DAPO's form around them: an instruction, the problem and a reminder, a blank
  line between, which ask for a last line `Answer: ...`. The words are ours,
  the request is that of the paper's data. Roles do not show in either.

  Args:
    messages: the conversation up to the response.
    template: one of `NAMES`.

  Raises:
    ValueError: there is no such template.
  """
  problem = '\n'.join(message.content for message in messages)
  if template == 'plain':
    return f'{problem}\n'
  if template == 'dapo':
    return f'{_INSTRUCTION}\n\n{problem}\n\n{_REMINDER}\n'
  raise ValueError(
    f'the template must be one of {", ".join(NAMES)}, got {template!r};'
    ' change --config.data.template'
  )
