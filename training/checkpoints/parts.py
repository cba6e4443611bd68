"""Parts of a checkpoint: each rank writes its rows of the tensors that the ranks hold together.

Part number r of a checkpoint is two files: `part-r.safetensors` with the rows of rank r, and `part-r.json`, the index
of these rows: for each tensor its keys in the state, its whole shape, its dtype and its first row in this part, and the
digest of the safetensors file. The manifest of the checkpoint has the digest of each index. Reading unpickles nothing,
and any number of ranks can read, as each reads the rows that it needs from all parts.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from training.errors import DataError
from training.record_base import Record
from training.storage.files import digest_file, write_text
from training.storage.record_files import DamagedError, read_record, record_text

if TYPE_CHECKING:
    import torch

Keys = tuple[int | str, ...]  # of a tensor in nested dictionaries


@dataclass(frozen=True)
class OwnRows:
    """This rank's rows of a tensor of `shape` (rows, ...) that all ranks hold together.

    `start` is the number of the first of these rows in the whole tensor, from 0.

    `unflattened` is the shape before the tensor was flattened to `shape`; None if the tensor was not flattened.
    """

    rows: "torch.Tensor"
    start: int
    shape: tuple[int, ...]
    unflattened: tuple[int, ...] | None = None


class IndexedRows(Record):
    """One tensor of an index: its keys in the state, its whole shape and dtype, and where its rows are.

    `start` is the number, in the whole tensor, of the first row that this part has.

    `unflattened` is that of :class:`OwnRows`.
    """

    keys: Keys
    shape: tuple[int, ...]
    dtype: str
    start: int
    unflattened: tuple[int, ...] | None = None


class PartIndex(Record):
    """The index of a part: digest and size of its safetensors file, and its tensors."""

    sha256: str
    bytes: int
    tensors: tuple[IndexedRows, ...]


@dataclass(frozen=True)
class StoredRows:
    """A tensor in the parts of a checkpoint: for each part its file and its first row, in the order of rows.

    `unflattened` is that of :class:`OwnRows`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    parts: tuple[tuple[Path, int], ...]
    unflattened: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor."""
        import torch

        return torch.empty(self.shape, dtype=getattr(torch, self.dtype), device="meta").nbytes

    def read(self, start: int, count: int) -> "torch.Tensor":
        """The rows from `start` on, (count, ...). Raises :class:`DataError` if the parts do not have these rows."""
        import torch

        chunks = [torch.empty((0, *self.shape[1:]), dtype=getattr(torch, self.dtype))]
        for file, first in self.parts:
            with safetensors.safe_open(file, framework="pt") as opened:
                rows = opened.get_slice(self.name)
                inside = slice(max(0, start - first), min(start + count - first, rows.get_shape()[0]))
                if inside.start < inside.stop:
                    chunks.append(rows[inside])
        tensor = torch.cat(chunks)
        if tensor.shape != (count, *self.shape[1:]):
            raise DataError(f"checkpoint {self.parts[0][0].parent}: rows of {self.name} are missing")
        return tensor


def separate(state: Mapping[Any, Any], keys: Keys = ()) -> tuple[dict[Any, Any], dict[Keys, OwnRows]]:
    """A copy of the nested dictionaries `state` with None for each :class:`OwnRows`, and the latter by their keys."""
    rest: dict[Any, Any] = {}
    rows: dict[Keys, OwnRows] = {}
    for key, value in state.items():
        if isinstance(value, OwnRows):
            rest[key], rows[*keys, key] = None, value
        elif isinstance(value, dict):
            rest[key], inside = separate(value, (*keys, key))
            rows |= inside
        else:
            rest[key] = value
    return rest, rows


def whole(value: Any, moved: Callable[[int], None] = lambda _: None) -> Any:
    """A copy of the nested dictionaries `value` with the whole tensor, not flattened, for each :class:`StoredRows`.

    `moved` is called with the number of bytes of each tensor that was read.
    """
    if isinstance(value, StoredRows):
        read = value.read(0, value.shape[0])
        moved(read.nbytes)
        return read if value.unflattened is None else read.view(value.unflattened)
    return {key: whole(part, moved) for key, part in value.items()} if isinstance(value, dict) else value


def write_part(
    folder: Path, rank: int, tensors: Mapping[Keys, OwnRows], moved: Callable[[int], None] = lambda _: None
) -> list[Path]:
    """Write the part of `rank`, durably, into `folder`; returns its files, the index last.

    `moved` is called with the number of bytes when they are written, and with each number of bytes read back.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    rows, index = part_files(folder, rank)
    save_file({_name(keys): own.rows.contiguous() for keys, own in tensors.items()}, rows)
    _sync(rows)
    size = rows.stat().st_size
    moved(size)
    entries = tuple(
        IndexedRows(
            keys=keys,
            shape=own.shape,
            dtype=str(own.rows.dtype).removeprefix("torch."),
            start=own.start,
            unflattened=own.unflattened,
        )
        for keys, own in tensors.items()
    )
    part_index = PartIndex(sha256=digest_file(rows, moved), bytes=size, tensors=entries)
    write_text(index, record_text(index.name, part_index, ""))
    return [rows, index]


def part_files(folder: Path, rank: int) -> tuple[Path, Path]:
    """The two files of the part of `rank`: its rows and its index."""
    return folder / f"part-{rank:05d}.safetensors", folder / f"part-{rank:05d}.json"


def verify_parts(folder: Path, digests: Sequence[str], moved: Callable[[int], None] = lambda _: None) -> None:
    """Raise :class:`DataError` unless the checkpoint in `folder` has the parts whose indices have these digests.

    `moved` is called with each number of bytes read. Raises OSError if the disk fails.
    """
    for rank, digest in enumerate(digests):
        rows, index = part_files(folder, rank)
        try:
            if digest_file(index) == digest:
                part_index = read_record(index, PartIndex, "")
                if rows.stat().st_size == part_index.bytes and digest_file(rows, moved) == part_index.sha256:
                    continue
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, DamagedError):
            pass
        raise DataError(f"checkpoint {folder}: part {rank} is missing, or not the bytes that were written")


def with_parts(state: dict[Any, Any], folder: Path, count: int) -> dict[Any, Any]:
    """Put a :class:`StoredRows` in `state` for each tensor in the `count` checked parts of `folder`; returns `state`.

    Raises :class:`DataError` if the state and the parts do not belong together.
    """
    try:
        for keys, tensor in _stored(folder, count):
            inside = state
            for key in keys[:-1]:
                inside = inside[key]
            if inside[keys[-1]] is not None:
                raise KeyError(keys[-1])
            inside[keys[-1]] = tensor
    except (KeyError, TypeError, OSError) as error:
        raise DataError(f"checkpoint {folder}: its parts do not belong to its state ({error!r})") from error
    return state


def _stored(folder: Path, count: int) -> Iterator[tuple[Keys, StoredRows]]:
    stored_rows: dict[Keys, StoredRows] = {}
    for rank in range(count):
        rows, index = part_files(folder, rank)
        for entry in read_record(index, PartIndex, "").tensors:
            before = stored_rows[entry.keys].parts if entry.keys in stored_rows else ()
            parts = (*before, (rows, entry.start))
            stored_rows[entry.keys] = StoredRows(
                _name(entry.keys), entry.shape, entry.dtype, parts, entry.unflattened
            )
    yield from stored_rows.items()


def _name(keys: Keys) -> str:
    return "/".join(map(str, keys))


def _sync(file: Path) -> None:
    """Make the content of a file durable (fsync)."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
