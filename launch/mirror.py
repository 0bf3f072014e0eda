"""Copies the files of a run's work directory to a bucket, and back.

  python launch/mirror.py put WORKDIR FOLDER [--every=SECONDS]
  python launch/mirror.py get FOLDER WORKDIR [--replace]

`put` leaves out the checkpoints, which have a folder of their own, and what
belongs to one machine; it copies what has changed. `get` brings what is not
there, of any folder, and with --replace what has changed there. With --every it
goes on until it is ended, and a copy that fails is told, not fatal.
"""

import argparse
import functools
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence

from etils import epath

# How the names in a work directory begin that are not copied.
_LEFT_OUT = ('.', 'checkpoints', 'process-', 'run.lock')
# How those end that are being written.
_HALF = ('.half', '.part')


def files(folder: epath.Path) -> Iterator[str]:
  """Yields the files that are whole in a folder and below it, by name."""
  if not folder.exists():
    return
  for path in sorted(folder.iterdir()):
    if path.is_dir():
      yield from (f'{path.name}/{below}' for below in files(path))
    elif not path.name.endswith(_HALF):
      yield path.name


def put(workdir: epath.Path, folder: epath.Path) -> int:
  """Copies what is not in the folder as it is here; returns how many files."""
  count = 0
  for name in files(workdir):
    target = folder / name
    if name.startswith(_LEFT_OUT):
      continue
    if target.exists() and not _changed(workdir / name, target):
      continue
    target.parent.mkdir(parents=True, exist_ok=True)
    # Read at once: a file that grows meanwhile is whole up to here.
    target.write_bytes((workdir / name).read_bytes())
    count += 1
  return count


def get(
  folder: epath.Path, workdir: epath.Path, *, replaces: bool = False
) -> int:
  """Copies what is not in the work directory; returns how many files.

  Args:
    folder: of the bucket.
    workdir: where files go. One that is there stays: a run's own is as new as
      the one in the bucket, or newer.
    replaces: whether one that has changed in the bucket takes its place: what
      a person has put there.
  """
  count = 0
  for name in files(folder):
    target = workdir / name
    if target.exists() and not (replaces and _changed(folder / name, target)):
      continue
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.parent / f'{target.name}.half'
    half.write_bytes((folder / name).read_bytes())
    half.replace(target)
    count += 1
  return count


def _changed(here: epath.Path, there: epath.Path) -> bool:
  """Says whether a file has another size, or is newer, than its copy."""
  ours, theirs = here.stat(), there.stat()
  return ours.length != theirs.length or ours.mtime > theirs.mtime


def main(argv: Sequence[str]) -> None:
  """Copies, as the command line says."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('direction', choices=('put', 'get'))
  parser.add_argument('source', type=epath.Path)
  parser.add_argument('target', type=epath.Path)
  parser.add_argument('--replace', action='store_true')
  parser.add_argument('--every', type=float, metavar='SECONDS')
  args = parser.parse_args(argv)
  get_them = functools.partial(get, replaces=args.replace)
  copy = {'put': put, 'get': get_them}[args.direction]
  if args.every is None:
    copy(args.source, args.target)
    return
  while True:
    time.sleep(args.every)
    try:
      copy(args.source, args.target)
    except Exception as error:  # a bucket that does not answer, say
      print(f'warning: {pathlib.Path(__file__).name}: {error}', file=sys.stderr)


if __name__ == '__main__':
  main(sys.argv[1:])
