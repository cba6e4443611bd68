"""Tokenizers: train one, prepare a given one, and convert text to token ids. All are JSON files of `tokenizers`.

The JSON of a prepared tokenizer cuts and pads each row to the same number of tokens, so that the file alone gives a
model's inputs: `tokenizers.Tokenizer.from_file(path).encode(text).ids`.
"""

import hashlib
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from training.data.manifest import TOKENIZER
from training.errors import DataError, SettingError
from training.seams import install_command

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4 of a trained tokenizer
_PADDING = ("[PAD]", "<pad>", "<|pad|>", "<PAD>", "[pad]", "<|endoftext|>", "</s>")
Ids = npt.NDArray[np.int64]


class Prepared(NamedTuple):
    """The JSON of a prepared tokenizer, the number of its ids, and the id that pads short rows."""

    content: str
    vocabulary: int
    padding: int

    @property
    def digest(self) -> str:
        """sha256 of the JSON."""
        return digest_of(self.content)


def check_installed() -> None:
    """Raise :class:`SettingError` if the library `tokenizers` is not installed."""
    if find_spec("tokenizers") is None:
        raise SettingError(
            "source Text: the library tokenizers is not installed; install it by "
            f"`{install_command('tokenizers')}`"
        )


def library_version() -> str:
    """Version of the library `tokenizers`. Raises as :func:`check_installed`."""
    check_installed()
    return version("tokenizers")


def digest_of(content: str) -> str:
    """sha256 of a tokenizer's JSON."""
    return hashlib.sha256(content.encode()).hexdigest()


def train(texts: Iterable[str], vocabulary: int, length: int) -> Prepared:
    """Train a tokenizer of at most `vocabulary` tokens: byte-level BPE over the texts in lower case.

    The same texts, in any order and with any number of threads, give the same bytes. This does not hold for every
    algorithm of the library: those that mark the inner pieces of a word, such as WordPiece, number these pieces in
    the order of a hash map with random keys. Byte-level BPE begins with the 256 bytes in a fixed order, and decides
    ties between pairs of tokens by their ids. No text has unknown tokens.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    first, last = _SPECIAL[2:4]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in (first, last)],
    )
    return _prepared(tokenizer, length, _SPECIAL[0])


def given(content: str, length: int, origin: str) -> Prepared:
    """A tokenizer that someone else made, prepared for rows of `length` tokens; `origin` names it in messages.

    Raises :class:`DataError` if `content` is no tokenizer, or has no token that can pad a row.
    """
    tokenizer = _read(content, origin)
    padding = (tokenizer.padding or {}).get("pad_token")
    known = [name for name in (padding, *_PADDING) if name and tokenizer.token_to_id(name) is not None]
    if not known:
        raise DataError(
            f"{origin}: has no token that fills up short rows. Add one and save the tokenizer again, as by "
            'tokenizer.add_special_tokens(["[PAD]"]).'
        )
    return _prepared(tokenizer, length, known[0])


def _prepared(tokenizer: "Tokenizer", length: int, padding: str) -> Prepared:
    number = tokenizer.token_to_id(padding)
    assert number is not None
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=number, pad_token=padding)
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    return Prepared(tokenizer.to_str(), max(ids) + 1, number)


class Encoded(NamedTuple):
    """Token ids (rows, length), and the number of texts that were cut because they have more tokens."""

    ids: Ids
    cut: int


class Encoder:
    """Converts text to token ids by the JSON of a prepared tokenizer.

    Raises :class:`DataError` if `content` is no tokenizer; `origin` names it in the message.
    """

    def __init__(self, content: str, origin: str = TOKENIZER) -> None:
        check_installed()
        self._tokenizer = _read(content, origin)
        self.length = int((self._tokenizer.padding or {}).get("length") or 0)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Token ids of the texts."""
        encodings = [self._tokenizer.encode(text) for text in texts]
        ids = np.array([encoding.ids for encoding in encodings], np.int64).reshape(
            len(encodings), self.length
        )
        return Encoded(ids, sum(bool(encoding.overflowing) for encoding in encodings))


def read_content(file: Path, digest: str) -> str:
    """The JSON in `file`. Raises :class:`DataError` if the file is missing, or its sha256 is not `digest`."""
    content = file.read_bytes() if file.is_file() else b""
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(
            f"{file}: missing or not what was written. Run the same command again: that command writes the file again."
        )
    return content.decode()


def _read(content: str, origin: str) -> "Tokenizer":
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(content)
    except Exception as error:  # the library raises plain exceptions
        raise DataError(
            f"{origin}: no tokenizer of the library tokenizers ({error}). Give a tokenizer.json, or a folder that "
            "has one; transformers writes it by save_pretrained of a fast tokenizer."
        ) from error
