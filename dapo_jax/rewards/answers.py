"""Where the answer stands in a response.

Host only.
"""

import re

# Only the end of a response is read. It also bounds the time of all that
# follows, whatever the response's length.
WINDOW_CHARACTERS = 300

# What stands for an answer where there is none.
NO_ANSWER = '[INVALID]'

# The line may begin after the colon or below it.
_ANSWER_LINE = re.compile(r'answer\s*:\s*([^\n]+)', re.IGNORECASE)


def last_answer(response: str) -> str:
  """Returns what follows the last `Answer:` of a response, up to its line end.

  `Answer` is found in any case and within a word, in the last 300 characters
  of the response; of two on one line the first counts. Without one the result
  is `NO_ANSWER`.
  """
  found = _ANSWER_LINE.findall(response[-WINDOW_CHARACTERS:])
  return found[-1] if found else NO_ANSWER
