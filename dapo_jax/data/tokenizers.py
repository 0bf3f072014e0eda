"""Text to token ids and back, whichever library reads the tokenizer.

Host only. Of tokenizer.json (Hugging Face) or tokenizer.model (sentencepiece).
"""

import dataclasses
import hashlib
import io
import json
import operator
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import sentencepiece
import tokenizers as hf_tokenizers
from sentencepiece import sentencepiece_model_pb2

from dapo_jax.data import chat_template, records, tokenizer_config

_FLAG = '--config.tokenizer.path'
# The usual names, by the ending that tells the library.
_NAMES = {'.json': 'tokenizer.json', '.model': 'tokenizer.model'}
# What a folder may hold of a tokenizer beside the file that is read.
_BESIDE = (
  *tokenizer_config.TEXT_FILES,
  'added_tokens.json',
  'chat_template.jinja',
  'merges.txt',
  'tokenizer.model',
  'vocab.json',
)
# The special tokens of a tokenizer trained here.
_TRAINED_IDS = {'pad_id': 0, 'eos_id': 1, 'bos_id': 2, 'unk_id': 3}


@runtime_checkable
class Tokenizer(Protocol):
  """What the rest of the system knows of a tokenizer."""

  # Ids that can be decoded: 0 <= id < vocab_size. A model may have more rows
  # than that; those ids must never be sampled.
  vocab_size: int
  # A response ends with any of these.
  eos_ids: tuple[int, ...]
  # Fills up arrays. May be an end token: whoever reads them goes by lengths.
  pad_id: int

  def encode(self, text: str) -> list[int]:
    """Returns the ids of `text`.

    Nothing is put around them, unless the tokenizer's own file says so for
    every text (as Llama's does, with its token for the beginning).
    """

  def decode(self, ids: Iterable[SupportsIndex]) -> str:
    """Returns the text of the ids, those of special tokens left out.

    Bytes that are no UTF-8, which a model may well sample, become U+FFFD.
    """


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
  """A tokenizer that knows the form of its model's conversations."""

  def chat_text(self, messages: Sequence[records.Message]) -> str:
    """Returns a conversation in that form, up to the assistant's turn.

    Raises:
      ValueError: the tokenizer comes without one, or it does not allow this.
    """

  def encode_chat(self, text: str) -> list[int]:
    """Returns the ids of a text that `chat_text` gave.

    Special tokens that are spelt out in it have their ids, and none are put
    around it: the form has those that belong there.
    """


def load(path: str | pathlib.Path) -> ChatTokenizer:
  """Returns the tokenizer of a folder, or of a tokenizer file.

  The ids that end a response are those of `eos_token_id` (a number or a list)
  in generation_config.json beside it, else in config.json, else its own. The
  id that pads is found likewise, else it is the first of those.

  Args:
    path: a folder with tokenizer.json (preferred) or tokenizer.model, or such
      a file by any name that ends in .json or .model.

  Raises:
    ValueError: no tokenizer is there, it can't be read, or lacks an end token.
  """
  file = _tokenizer_file(pathlib.Path(path))
  read = {'.json': _read_hf, '.model': _read_sentencepiece}[file.suffix]
  try:
    own = read(file)
  except Exception as error:  # The libraries raise nothing more exact.
    raise ValueError(
      f'{file} cannot be read as a tokenizer: {error}; change {_FLAG}'
    ) from error
  eos_ids = tokenizer_config.configured_ids(file.parent, 'eos') or own.eos_ids
  _check_eos(file, eos_ids, own.vocab_size)
  # A config may well say -1 for none, or an id of the model's spare rows.
  pad_ids = (
    *tokenizer_config.configured_ids(file.parent, 'pad'),
    own.pad_id,
    eos_ids[0],
  )
  pad_id = next(i for i in pad_ids if i in range(own.vocab_size))
  return dataclasses.replace(own, eos_ids=eos_ids, pad_id=pad_id)


def save(tokenizer: Tokenizer, folder: str | pathlib.Path) -> None:
  """Copies a loaded tokenizer's files so that `load(folder)` gives it back.

  All that stands beside them goes along, such as the chat template. The ids
  that end and pad go into generation_config.json there: they may have come
  from a model's config.json, which is not copied. The folder is made if need
  be; it should hold no other tokenizer.
  """
  assert isinstance(tokenizer, _Loaded), tokenizer
  file, folder = tokenizer.file, pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  target = folder / _NAMES[file.suffix]
  if target.exists() and target.samefile(file):
    return
  shutil.copyfile(file, target)
  for name in _BESIDE:
    if name != target.name and file.with_name(name).is_file():
      shutil.copyfile(file.with_name(name), folder / name)
  settings = tokenizer_config.json_object(
    file.with_name(tokenizer_config.ID_FILES[0])
  ) | {
    'eos_token_id': list(tokenizer.eos_ids),
    'pad_token_id': tokenizer.pad_id,
  }
  (folder / tokenizer_config.ID_FILES[0]).write_text(
    json.dumps(settings, indent=2), 'utf-8'
  )


def fingerprint(tokenizer: Tokenizer) -> str:
  """Returns 16 hexadecimal digits, others for a tokenizer with other files.

  Of the file that is read and the ids that end and pad.
  """
  assert isinstance(tokenizer, _Loaded), tokenizer
  ids = f'{list(tokenizer.eos_ids)} {tokenizer.pad_id}'
  content = tokenizer.file.read_bytes() + ids.encode()
  return hashlib.sha256(content).hexdigest()[:16]


def train_sentencepiece(
  texts: Iterable[str], path: str | pathlib.Path, *, vocab_size: int
) -> None:
  """Writes a sentencepiece model (byte-pair encoding) learnt from `texts`.

  Any text goes through it unchanged, to the byte: there is a piece for every
  byte, no normalisation, no space put in front, and a space is a space (not
  U+2581, which is a character like any other). Digits stay single. The same
  texts give the same file. Ids: 0 pads, 1 ends, 2 begins, 3 is unknown.

  Args:
    texts: what to learn from, not all empty.
    path: the file to write; its folder must exist.
    vocab_size: most pieces, the 4 and the bytes included; the texts may give
      fewer.

  Raises:
    ValueError: `vocab_size` has no room for the characters of the texts.
  """
  texts = list(texts)
  _check_training(texts, vocab_size)
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts),
    model_writer=model,
    model_type='bpe',
    vocab_size=vocab_size,
    hard_vocab_limit=False,
    max_sentence_length=2**30,  # Longer texts would be dropped silently.
    character_coverage=1.0,
    byte_fallback=True,
    split_digits=True,
    normalization_rule_name='identity',
    add_dummy_prefix=False,
    remove_extra_whitespaces=False,
    **_TRAINED_IDS,
    num_threads=1,
    minloglevel=2,
  )
  # Complete or absent, for the next run would read half of it.
  half = pathlib.Path(path).with_name(pathlib.Path(path).name + '.half')
  half.write_bytes(_with_plain_spaces(model.getvalue()))
  half.replace(path)


@dataclasses.dataclass(frozen=True)
class _Loaded:
  """A `Tokenizer` read from a file."""

  file: pathlib.Path
  vocab_size: int
  # As a reader below returns it: (), and -1, where the file names none.
  eos_ids: tuple[int, ...]
  pad_id: int
  special_ids: frozenset[int]
  encode: Callable[[str], list[int]]
  encode_chat: Callable[[str], list[int]]
  decode_text: Callable[[list[int]], str]

  def decode(self, ids: Iterable[SupportsIndex]) -> str:
    ids = [operator.index(i) for i in ids]
    assert all(0 <= i < self.vocab_size for i in ids), (ids, self.vocab_size)
    # First, so that bytes of one character meet across a special token.
    left_out = self.special_ids.union(self.eos_ids)
    return self.decode_text([i for i in ids if i not in left_out])

  def chat_text(self, messages: Sequence[records.Message]) -> str:
    return chat_template.render(messages, self.file.parent)


def _tokenizer_file(path: pathlib.Path) -> pathlib.Path:
  """Returns the tokenizer file that `path` is, or that is in it."""
  if path.is_file() and path.suffix in _NAMES:
    return path
  for name in _NAMES.values():
    if (path / name).is_file():
      return path / name
  raise ValueError(
    f'there is no tokenizer at {path}: expected a folder with'
    f' {" or ".join(_NAMES.values())}, or a file whose name ends in'
    f' {" or ".join(_NAMES)}; change {_FLAG}'
  )


def _read_hf(file: pathlib.Path) -> _Loaded:
  """Returns the tokenizer of a tokenizer.json."""
  tokenizer = hf_tokenizers.Tokenizer.from_file(str(file))
  # The file may ask for either; a cut-off prompt would be another problem.
  tokenizer.no_truncation()
  tokenizer.no_padding()
  eos_id = tokenizer.token_to_id(
    tokenizer_config.token_text(file.parent, 'eos')
  )
  pad_id = tokenizer.token_to_id(
    tokenizer_config.token_text(file.parent, 'pad')
  )
  return _Loaded(
    file=file,
    # Ids may have holes (they decode to ''), so their number won't do.
    vocab_size=1 + max(tokenizer.get_vocab(with_added_tokens=True).values()),
    eos_ids=() if eos_id is None else (eos_id,),
    pad_id=-1 if pad_id is None else pad_id,
    special_ids=frozenset(
      i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special
    ),
    encode=lambda text: tokenizer.encode(text).ids,
    encode_chat=lambda text: (
      tokenizer.encode(text, add_special_tokens=False).ids
    ),
    decode_text=lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
  )


def _read_sentencepiece(file: pathlib.Path) -> _Loaded:
  """Returns the tokenizer of a sentencepiece model."""
  processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
  ids = range(processor.vocab_size())
  # It takes user-defined symbols for what they are wherever they stand, but
  # these only by their ids.
  control_ids = {
    processor.id_to_piece(i): i for i in ids if processor.is_control(i)
  }

  def encode_chat(text: str) -> list[int]:
    parts = re.split(f'({"|".join(map(re.escape, control_ids))})', text)
    return [
      i
      for part in parts
      for i in (
        [control_ids[part]] if part in control_ids else processor.encode(part)
      )
    ]

  return _Loaded(
    file=file,
    vocab_size=len(ids),
    eos_ids=tuple(i for i in [processor.eos_id()] if i in ids),
    pad_id=processor.pad_id(),
    special_ids=frozenset(
      i for i in ids if processor.is_control(i) or processor.is_unknown(i)
    ),
    encode=processor.encode,
    encode_chat=encode_chat,
    decode_text=processor.decode,
  )


def _check_eos(
  file: pathlib.Path, eos_ids: tuple[Any, ...], vocab_size: int
) -> None:
  """Raises if the tokenizer cannot tell where a response ends."""
  if not eos_ids:
    raise ValueError(
      f'{file} names no token that ends a response, nor is beside it an'
      f' eos_token_id in {" or ".join(tokenizer_config.ID_FILES)}, or an'
      f' eos_token in {" or ".join(tokenizer_config.TEXT_FILES)};'
      f' change {_FLAG}'
    )
  if not all(i in range(vocab_size) for i in eos_ids):
    raise ValueError(
      f'the eos_token_id {list(eos_ids)} beside {file} must be ids of it, at'
      f' least 0 and less than {vocab_size}; change {_FLAG}'
    )


def _check_training(texts: list[str], vocab_size: int) -> None:
  """Raises if no tokenizer of that size can hold the texts' characters."""
  characters_count = len(set().union(*texts))
  needed = len(_TRAINED_IDS) + 256 + characters_count
  if vocab_size < needed:
    raise ValueError(
      f'the vocabulary ({vocab_size}) must hold {len(_TRAINED_IDS)} special'
      f' tokens, 256 bytes and the {characters_count} characters of the texts,'
      f' {needed} in all; change --config.tokenizer.vocab_size'
    )


def _with_plain_spaces(model: bytes) -> bytes:
  """Returns a sentencepiece model in which a space is written as a space.

  The library can be trained only with spaces written as U+2581, which it then
  decodes to a space even where the text had that character.
  """
  proto = sentencepiece_model_pb2.ModelProto.FromString(model)
  proto.normalizer_spec.escape_whitespaces = False
  for piece in proto.pieces:
    if piece.type == piece.NORMAL:
      piece.piece = piece.piece.replace('\u2581', ' ')
  return proto.SerializeToString(deterministic=True)
