"""What the tests of a run's parts share: a folder, and parts built in it."""

import json
import pathlib
import tempfile

from absl.testing import parameterized

import tiny_run
from dapo_jax.training import assemble


class Case(parameterized.TestCase):
  """A test with a folder of its own."""

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(folder)

  def build(self, changes=None, *, devices=1) -> assemble.Parts:
    """Returns the parts of a tiny run with changes, in the folder."""
    with tiny_run.devices(devices):
      return assemble.build(tiny_run.config(changes), self.folder)

  def jsonl(self, name, problems) -> str:
    """Writes pairs of problem and answer to a file; returns where it is."""
    path = self.folder / name
    rows = [{'problem': p, 'answer': a} for p, a in problems]
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return str(path)
