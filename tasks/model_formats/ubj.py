"""Reads the subset of Universal Binary JSON (UBJ, draft 12 of https://ubjson.org) in which XGBoost stores a model.

The subset has objects, strings, integers of several sizes, float32, and arrays with a count, with or without a type.
"""

import struct
from typing import Any

import numpy as np

from training.errors import DataError

_INTEGERS = {b"i": ">b", b"U": ">B", b"I": ">h", b"l": ">i", b"L": ">q"}
_TYPED = _INTEGERS | {b"d": ">f"}
_DEEPEST = 16


def read_ubj(content: bytes) -> Any:
    """The value that the bytes hold; arrays with a type are NumPy arrays.

    Raises :class:`DataError` for anything other than one complete value in the subset of UBJ that XGBoost writes.
    """
    reader = _Reader(content)
    value = reader.value(reader.take(1), 0)
    if reader.at != len(content):
        raise DataError(f"{len(content) - reader.at} bytes follow the end of the model")
    return value


class _Reader:
    """Reads values from `content`, beginning at the byte position `at`."""

    def __init__(self, content: bytes):
        self.content, self.at = content, 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if not 0 <= count <= len(self.content) - self.at:
            raise DataError(f"no UBJ of XGBoost: it ends within a value, at byte {self.at}")
        self.at += count
        return self.content[self.at - count : self.at]

    def value(self, kind: bytes, depth: int) -> Any:
        """Read a value whose first byte, its `kind`, was read before."""
        if depth > _DEEPEST:
            raise DataError(f"nested deeper than a model of XGBoost, at byte {self.at}")
        if kind == b"{":
            return self._object(depth)
        if kind == b"[":
            return self._array(depth)
        if kind == b"S":
            return self._text(self.take(1))
        if kind in _TYPED:
            form = _TYPED[kind]
            return struct.unpack(form, self.take(struct.calcsize(form)))[0]
        raise DataError(f"no UBJ of XGBoost: byte {self.at - 1} begins no value")

    def _object(self, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while (kind := self.take(1)) != b"}":
            name = self._text(kind)
            if name in fields:
                raise DataError(f"{name!r} is there twice")
            fields[name] = self.value(self.take(1), depth + 1)
        return fields

    def _text(self, kind: bytes) -> str:
        """Read a string after its byte `S`, if any; `kind` is the kind of the integer that gives its length."""
        try:
            return self.take(self._count(kind)).decode()
        except UnicodeDecodeError as error:
            raise DataError(f"a string at byte {self.at} is not UTF-8") from error

    def _array(self, depth: int) -> Any:
        kind = self.take(1)
        if kind == b"$":
            form = _TYPED.get(self.take(1))
            if form is None or self.take(1) != b"#":
                raise DataError(f"no UBJ of XGBoost: an array of an unknown type at byte {self.at}")
            count = self._count(self.take(1))
            return np.frombuffer(self.take(count * struct.calcsize(form)), np.dtype(form))
        if kind != b"#":
            raise DataError(f"no UBJ of XGBoost: an array without count at byte {self.at}")
        count = self._count(self.take(1))
        if count > len(self.content) - self.at:
            raise DataError(f"no UBJ of XGBoost: an array ends outside of the file, at byte {self.at}")
        return [self.value(self.take(1), depth + 1) for _ in range(count)]

    def _count(self, kind: bytes) -> int:
        if kind not in _INTEGERS or (count := self.value(kind, 0)) < 0:
            raise DataError(f"no UBJ of XGBoost: no length at byte {self.at}")
        return int(count)
