"""The state of a reign: what was spent on comparisons with one reference under one rule, as a text that a tag can hold.

The state only grows, so two states of one reign can be united: crossed flips are OR-ed and the keys of looks joined.
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
_MOST_KEYS = (
    180  # with all flips in 2,500 bytes, a text of at most 5,000 characters, which every MLflow server stores
)
_DIGEST = "sha256"
_DIGITS = 16


class DamagedReignError(ValueError):
    """The text of a state is not what was written."""


@dataclass(frozen=True)
class Reign:
    """Looks taken, flips that crossed a boundary, and the level that strict looks spent.

    `keys` identify the newest looks, oldest first; `forgotten` counts the older ones.
    """

    keys: tuple[str, ...] = ()
    forgotten: int = 0
    strict_spent: float = 0.0
    crossed: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(FLIPS, bool))

    @property
    def looks(self) -> int:
        """How many comparisons were made."""
        return self.forgotten + len(self.keys)

    def with_look(self, key: str, crossed: Flips, strict_level: float) -> "Reign":
        """The state after a look; the same state when the look is in it already."""
        if key in self.keys:
            return self
        marked = self.crossed.copy()
        marked[crossed] = True
        keys = (*self.keys, key)
        return Reign(
            keys=keys[-_MOST_KEYS:],
            forgotten=self.forgotten + max(0, len(keys) - _MOST_KEYS),
            strict_spent=self.strict_spent + strict_level,
            crossed=marked,
        )

    def united(self, other: "Reign") -> "Reign":
        """Both states in one. Where each has looks that the other lacks, strict levels add up: never too little."""
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
        """The state with a checksum; :func:`read_reign` is the way back."""
        content = {
            "format": _FORMAT,
            "keys": _packed(bytes.fromhex("".join(self.keys))),
            "forgotten": self.forgotten,
            "strict_spent": self.strict_spent,
            "crossed": _packed(zlib.compress(np.packbits(self.crossed).tobytes(), 9)),
        }
        return json.dumps(content | {_DIGEST: _digest(content)})


def read_reign(text: str) -> Reign:
    """Raises :class:`DamagedReignError` when `text` is not what :meth:`Reign.text` wrote."""
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
    """What identifies a look within a reign: 48 bits over all that its outcome follows from."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[: 2 * _KEY_BYTES]


def pack_flips(flips: Flips) -> str:
    """Numbers of flips as text."""
    return _packed(flips.astype("<u2").tobytes())


def unpack_flips(text: str) -> Flips:
    """Raises :class:`DamagedReignError` when `text` is not what :func:`pack_flips` wrote."""
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
