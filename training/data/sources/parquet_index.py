"""Index the rows of a source's Parquet files: split, file, row number and label. Pixels are not read."""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from training.data.sources.parquet_files import open_parquet, read_types
from training.data.sources.plain_files import check_link, check_plain
from training.data.sources.splits import NAMES, NEEDED, is_divided, split_named
from training.errors import DataError

log = logging.getLogger("evergreen.sources")

SPLIT_COLUMN = "split"
_HIDDEN = (".", "_")  # Delta and Spark keep their own files in folders such as _delta_log and _temporary
# Endings of files that probably hold rows.
_DATA = (
    ".csv",
    ".tsv",
    ".parquet",
    ".pq",
    ".json",
    ".jsonl",
    ".xlsx",
    ".arrow",
    ".feather",
    ".gz",
    ".bz2",
    ".zst",
)


class IndexedRow(NamedTuple):
    """An entry of the index: row number `row` (from 0) of file number `file`, with its split and label."""

    split: str
    file: int
    row: int
    label: str


def files_with(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The entries of `folder` whose names end in one of `suffixes`, in upper or lower case, sorted.

    Hidden entries are left out. A folder that does not exist has no entries. Raises :class:`DataError` when `folder` is
    a link that leads to nothing, and OSError when this user may not read the folder.
    """
    check_link(folder)
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.lower().endswith(suffixes)]
    return sorted(folder / name for name in names if not name.startswith("."))


def find_files(
    root: Path, suffixes: tuple[str, ...] = (".parquet",), kind: str = "Parquet"
) -> list[tuple[str, Path]]:
    """The files under `root` that end in one of `suffixes`, each with the split that its folder or name gives, or "".

    `kind` names such files in messages. Warns of data files in other formats, which are not read. Raises
    :class:`DataError` when there are no files, when a folder beside the files has such files, too, or when the splits
    are incomplete: some files have a split and others have none, or train or test is missing.
    """
    if root.is_file():
        return [("", root)]
    files = [(split_named(name), file) for name in NAMES for file in files_with(root / name, suffixes)]
    flat = files_with(root, suffixes)
    if files and flat:
        raise DataError(f"{flat[0]}: beside train/ and test/, so it would not be used. Move it elsewhere.")
    files = files or [(_split_by_name(file), file) for file in flat]
    if not files:
        wanted = " or ".join(f"*{suffix}" for suffix in suffixes)
        raise DataError(f"{root}: no {wanted} here or in train/ and test/.")
    for _, file in files:
        check_plain(file)
    _check_unused(root, {file for _, file in files}, suffixes)
    present = {split for split, _ in files}
    if not is_divided(present):
        missing = " and ".join(
            f"{split}/ or {split}-*{suffixes[0]}" for split in NEEDED if split not in present
        )
        raise DataError(
            f"{root}: some {kind} files are {' and '.join(sorted(filter(None, present)))}, but {missing} is "
            "missing, or not every file says its split. Divide all, or none and let data.test_share do it."
        )
    return files


def _check_unused(root: Path, used: set[Path], suffixes: tuple[str, ...]) -> None:
    """Warn of data files that are not read. Raises :class:`DataError` for a folder with files that would not be."""
    splits = {file.parent for file in used} - {root}
    others = []
    for folder in sorted({root, *splits}):
        for path in sorted(folder.iterdir()):
            if path in splits or path in used or path.name.startswith(_HIDDEN):
                continue
            if path.is_dir():
                if unread := _first_below(path, suffixes):
                    raise DataError(
                        f"{unread}: in a folder beside the files that are read, so it would not be used. Move the file "
                        f"to {folder}, or the folder {path.name} elsewhere."
                    )
            elif path.name.lower().endswith(_DATA):
                others.append(path)
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        log.warning(
            "%s%s: not read, as only files that end in %s are.", others[0], more, " or ".join(suffixes)
        )


def _first_below(folder: Path, suffixes: tuple[str, ...]) -> Path | None:
    """A file in `folder`, at any depth, whose name ends in one of `suffixes`; hidden files and folders are left out."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(_HIDDEN))
        for name in sorted(names):
            if name.lower().endswith(suffixes) and not name.startswith(_HIDDEN):
                return Path(parent, name)
    return None


def index_file(
    number: int, file: Path, split: str, image: str, label: str, classes: tuple[str, ...]
) -> list[IndexedRow]:
    """Index entries of all rows of `file`; labels are checked, and integer labels converted to class names.

    Raises :class:`DataError` that names the file, and the row if one is at fault.
    """
    with open_parquet(file) as parquet:
        names = parquet.schema_arrow.names
        for column, setting in ((image, "image"), (label, "label")):
            if column not in names:
                raise DataError(
                    f"{file}: no column {column!r}; there are {', '.join(names)}. Name the right one in "
                    f"ParquetImages({setting}=...)."
                )
        wanted = [label, *([SPLIT_COLUMN] if SPLIT_COLUMN in names else [])]
        table = parquet.read(columns=wanted)
    if not len(table):
        raise DataError(f"{file}: has no rows.")
    labels = _labels(table[label], file, label, classes)
    splits = splits_of(table, file, split)
    return [
        IndexedRow(*fields)
        for fields in zip(splits, [number] * len(labels), range(len(labels)), labels, strict=True)
    ]


def declared_names(file: Path, label: str) -> tuple[str, ...]:
    """Class names that Hugging Face's `datasets` wrote into the schema for integer labels, or ()."""
    raw = (read_types(file).metadata or {}).get(b"huggingface")
    if raw is None:
        return ()
    try:
        feature: Any = json.loads(raw)["info"]["features"][label]
        return tuple(map(str, feature["names"])) if feature.get("_type") == "ClassLabel" else ()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ()


def class_names(
    files: Sequence[Path], label: str, declared: tuple[str, ...]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The classes of a source, and for each file the names of its integer labels, in the order of the integers.

    The classes are `declared`, else those of the first file that names them, else (). A file that names the same
    classes in another order has its own order. Raises :class:`DataError` for two files that name different classes;
    with `declared`, other names in a file are replaced, with a warning.
    """
    own = [declared_names(file, label) for file in files]
    first = next((number for number, names in enumerate(own) if names), None)
    classes = declared or (() if first is None else own[first])
    for file, names in zip(files, own, strict=True):
        if not names or set(names) == set(classes):
            continue
        if not declared and first is not None:
            raise DataError(
                f"{file}: its schema names the classes {', '.join(names)}; the schema of {files[first]} names "
                f"{', '.join(classes)}. Write both with the same classes, or declare ParquetImages(classes=...)."
            )
        log.warning(
            "%s: its schema names the classes %s; integer labels are read as the declared classes, in the order %s",
            file,
            ", ".join(names),
            ", ".join(classes),
        )
    return classes, [names if set(names) == set(classes) else classes for names in own]


def class_order(labels: set[str]) -> tuple[str, ...]:
    """Labels in the order of classes: by number when all labels are numbers, else by name."""
    return tuple(
        sorted(labels, key=(lambda name: (int(name), name)) if all(map(_is_number, labels)) else None)
    )


def _is_number(label: str) -> bool:
    return label.isascii() and label.isdigit()


def _split_by_name(file: Path) -> str:
    # Hugging Face names files train-00000-of-00001.parquet.
    stem = file.stem.lower()
    return split_named(next((name for name in NAMES if stem == name or stem.startswith(f"{name}-")), ""))


def _labels(column: pa.ChunkedArray, file: Path, name: str, classes: tuple[str, ...]) -> list[str]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    values: list[Any] = column.to_pylist()
    if None in values:
        raise DataError(f"{file} row {values.index(None)}: column {name!r} is null; every row needs a label.")
    if pa.types.is_integer(kind):
        highest = len(classes) - 1 if classes else None
        for row, value in enumerate(values):
            if value < 0 or (highest is not None and value > highest):
                rule = f"0 to {highest}, the declared classes" if classes else "0 or more"
                raise DataError(f"{file} row {row}: label {value}; integer labels must be {rule}.")
        return [classes[value] if classes else str(value) for value in values]
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise DataError(f"{file}: column {name!r} is of type {kind}; labels must be strings or integers.")
    for row, value in enumerate(values):
        if not value or (classes and value not in classes):
            raise DataError(
                f"{file} row {row}: label {value!r} is not among {', '.join(classes) or 'possible names'}."
            )
    return list(values)


def splits_of(table: pa.Table, file: Path, given: str) -> list[str]:
    """Each row's split. Raises DataError when the column `split` contradicts the file's folder or name."""
    if SPLIT_COLUMN not in table.column_names:
        return [given] * len(table)
    values: list[str] = table[SPLIT_COLUMN].to_pylist()
    allowed = [name for name in NAMES if not given or split_named(name) == given]
    for row, value in enumerate(values):
        if value not in allowed:
            raise DataError(f"{file} row {row}: split {value!r}; it must be {' or '.join(allowed)}.")
    return [split_named(value) for value in values]
