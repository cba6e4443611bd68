"""State of a reign: what comparisons with one reference under one rule have spent, as text that fits into a tag.

The state only grows, so concurrent states of one reign can be merged: crossed flips (random sign assignments, see
:mod:`tasks.gate.signs`) are OR-ed, and the keys of looks are joined. A damaged state is rebuilt from the looks that
are still recorded with the candidates (:func:`rebuilt_reign`).
"""

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tasks.gate.signs import FLIPS
from training.records import Look

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
    """Looks taken in a reign, flips that crossed a boundary, and the error levels that looks spent.

    `keys` identify the newest looks, oldest first; `forgotten` is the number of older looks. `strict_spent` and
    `joint_spent` are the levels that strict and joint looks spent. `joint_spent` is an upper bound, and None in a state
    that an earlier version of Evergreen wrote without this level.
    """

    keys: tuple[str, ...] = ()
    forgotten: int = 0
    strict_spent: float = 0.0
    crossed: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(FLIPS, bool))
    joint_spent: float | None = 0.0

    @property
    def looks(self) -> int:
        """Number of comparisons made in the reign."""
        return self.forgotten + len(self.keys)

    def after(self, look: Look) -> "Reign":
        """The state after `look`. A look that the state already has is not counted again, but its flips stay spent.

        The state had a look without a key in `keys` if the look's number is at most `forgotten`: looks are counted in
        the order of their numbers, or later. The only exception is a look whose record was interrupted before the
        state was written, and that is recorded after 180 more looks: this look is not counted.
        """
        crossed = unpack_flips(look.crossed)
        if look.key in self.keys or look.number <= self.forgotten:
            return self._crossing(crossed)
        if look.error_control == "strict":
            return self._counting(look.key, crossed, self.strict_spent + look.level, self.joint_spent)
        return self._counting(look.key, crossed, self.strict_spent, self._jointly_spent(look))

    def _jointly_spent(self, look: Look) -> float | None:
        """Level that joint looks have spent with `look`.

        `look.spent` less the strict levels under constant settings. After a change of settings, the look may have less
        to spend than earlier looks have spent, but its own level comes on top.
        """
        if self.joint_spent is None:
            return None
        return max(look.spent - self.strict_spent, self.joint_spent + look.level)

    def _crossing(self, flips: Flips) -> "Reign":
        """The state in which `flips` have crossed a boundary, too."""
        if self.crossed[flips].all():
            return self
        marked = self.crossed.copy()
        marked[flips] = True
        return replace(self, crossed=marked)

    def _counting(self, key: str, flips: Flips, strict: float, joint: float | None) -> "Reign":
        """The state with one more look, whose flips have crossed, and with these levels."""
        keys = (*self.keys, key)
        return replace(
            self._crossing(flips),
            keys=keys[-_MOST_KEYS:],
            forgotten=self.forgotten + max(0, len(keys) - _MOST_KEYS),
            strict_spent=strict,
            joint_spent=joint,
        )

    def united(self, other: "Reign") -> "Reign":
        """Merge two states. If each has looks that the other lacks, the levels are added: an upper bound."""
        missing = tuple(key for key in other.keys if key not in self.keys)
        contained = set(self.keys) <= set(other.keys)

        def spent(ours: float, theirs: float) -> float:
            if not missing:
                return max(ours, theirs)
            return theirs if contained else ours + theirs

        joint = (self.joint_spent, other.joint_spent)
        keys = self.keys + missing
        return replace(
            self,
            keys=keys[-_MOST_KEYS:],
            forgotten=max(self.forgotten, other.forgotten) + max(0, len(keys) - _MOST_KEYS),
            strict_spent=spent(self.strict_spent, other.strict_spent),
            crossed=self.crossed | other.crossed,
            joint_spent=None if joint[0] is None or joint[1] is None else spent(joint[0], joint[1]),
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
        if self.joint_spent is not None:
            content["joint_spent"] = self.joint_spent
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
            joint_spent=float(content["joint_spent"]) if "joint_spent" in content else None,
        )
    except (ValueError, TypeError, KeyError, RecursionError, zlib.error) as error:
        raise DamagedReignError(str(error)) from error


def rebuilt_reign(looks: Iterable[Look]) -> Reign:
    """The state of a reign, from those of its looks that are found.

    The highest number and the highest level spent that a found look has are lower bounds. What looks that are not found
    have spent counts as spent by strict looks, because which flips they crossed is not known: the next joint look may
    then spend no more than the level that is new with it.
    """
    sorted_looks = sorted(looks, key=lambda look: look.number)
    reign = Reign()
    for look in sorted_looks:
        reign = reign.after(look)
    missing = max((look.number for look in sorted_looks), default=0) - reign.looks
    if missing <= 0:
        return reign
    spent = max(*(look.spent for look in sorted_looks), reign.strict_spent + (reign.joint_spent or 0.0))
    strict = max(reign.strict_spent, spent - float(reign.crossed.sum()) / (FLIPS + 1))
    return replace(
        reign, forgotten=reign.forgotten + missing, strict_spent=strict, joint_spent=spent - strict
    )


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
