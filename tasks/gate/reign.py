"""State of a reign: what comparisons with one reference under one rule have spent, as text that fits into a tag.

The state only grows, so concurrent states of one reign can be merged: crossed flips (random sign assignments, see
:mod:`tasks.gate.signs`) are OR-ed, and the keys of looks are joined.
"""

import base64
import binascii
import hashlib
import json
import zlib
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tasks.gate.signs import FLIPS

Flips = npt.NDArray[np.intp]

_FORMAT = 1
_KEY_BYTES = 6
# With all flips in 2,500 bytes, the text has at most 5,000 characters, which every MLflow server stores.
_MOST_KEYS = 180
_DIGEST = "sha256"
_DIGITS = 16


class DamagedReignError(ValueError):
    """The text of a reign's state, or of packed flips, is damaged."""


@dataclass(frozen=True)
class Reign:
    """Looks taken in a reign, flips that crossed a boundary, and the error level that strict looks spent.

    `keys` identify the newest looks, oldest first; `forgotten` is the number of older looks.
    """

    keys: tuple[str, ...] = ()
    forgotten: int = 0
    strict_spent: float = 0.0
    crossed: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(FLIPS, bool))

    @property
    def looks(self) -> int:
        """Number of comparisons made in the reign."""
        return self.forgotten + len(self.keys)

    def with_look(self, key: str, crossed: Flips, strict_level: float) -> "Reign":
        """The state after a look. A look that the state already has is not counted again, but its flips stay spent."""
        if key in self.keys and self.crossed[crossed].all():
            return self
        marked = self.crossed.copy()
        marked[crossed] = True
        if key in self.keys:
            return replace(self, crossed=marked)
        keys = (*self.keys, key)
        return Reign(
            keys=keys[-_MOST_KEYS:],
            forgotten=self.forgotten + max(0, len(keys) - _MOST_KEYS),
            strict_spent=self.strict_spent + strict_level,
            crossed=marked,
        )

    def united(self, other: "Reign") -> "Reign":
        """Merge two states. If each has looks that the other lacks, the strict levels are added: an upper bound."""
        missing = tuple(key for key in other.keys if key not in self.keys)
        if not missing:
            spent = max(self.strict_spent, other.strict_spent)
        elif set(self.keys) <= set(other.keys):
            spent = other.strict_spent
        else:
            spent = self.strict_spent + other.strict_spent
        keys = self.keys + missing
        return replace(
            self,
            keys=keys[-_MOST_KEYS:],
            forgotten=max(self.forgotten, other.forgotten) + max(0, len(keys) - _MOST_KEYS),
            strict_spent=spent,
            crossed=self.crossed | other.crossed,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reign) and self.text() == other.text()

    def text(self) -> str:
        """Serialize the state, with a checksum; :func:`read_reign` parses the text."""
        content = {
            "format": _FORMAT,
            "keys": _packed(bytes.fromhex("".join(self.keys))),
            "forgotten": self.forgotten,
            "strict_spent": self.strict_spent,
            "crossed": _packed(zlib.compress(np.packbits(self.crossed).tobytes(), 9)),
        }
        return json.dumps(content | {_DIGEST: _digest(content)})


def read_reign(text: str) -> Reign:
    """Parse the text of :meth:`Reign.text`; raises :class:`DamagedReignError` when the text is damaged."""
    try:
        content = dict(json.loads(text))
        if content.pop(_DIGEST, None) != _digest(content) or content["format"] != _FORMAT:
            raise DamagedReignError("its checksum or format is another")
        keys = base64.b64decode(content["keys"]).hex()
        packed = np.frombuffer(zlib.decompress(base64.b64decode(content["crossed"])), np.uint8)
        return Reign(
            keys=tuple(keys[at : at + 2 * _KEY_BYTES] for at in range(0, len(keys), 2 * _KEY_BYTES)),
            forgotten=int(content["forgotten"]),
            strict_spent=float(content["strict_spent"]),
            crossed=np.unpackbits(packed, count=FLIPS).astype(bool),
        )
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        raise DamagedReignError(str(error)) from error


def look_key(*parts: object) -> str:
    """Key of a look within a reign: 48 bits of a digest of everything that determines the look's outcome."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[: 2 * _KEY_BYTES]


def pack_flips(flips: Flips) -> str:
    """Encode the numbers of flips as text; :func:`unpack_flips` decodes it."""
    return _packed(flips.astype("<u2").tobytes())


def unpack_flips(text: str) -> Flips:
    """Decode the text of :func:`pack_flips`; raises :class:`DamagedReignError` when the text is not valid."""
    try:
        flips = np.frombuffer(base64.b64decode(text, validate=True), "<u2").astype(np.intp)
    except (binascii.Error, ValueError) as error:
        raise DamagedReignError(str(error)) from error
    if (flips >= FLIPS).any():
        raise DamagedReignError(f"a flip's number is not below {FLIPS}")
    return flips


def _packed(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _digest(content: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_DIGITS]
