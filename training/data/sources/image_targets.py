"""Find the images of a folder and the number that a table gives for each, and hash the images.

The table is CSV or Parquet with a column `file_name`, as Hugging Face's `imagefolder` has it. Order and digest depend
only on each image's split, number and content. Renaming or touching an image file, or moving the whole folder, changes
neither.
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from training.data.sources.folder_listing import (
    IMAGE_SUFFIXES,
    ImageFile,
    _hashed,  # making it public would change the digest of its module, and so the identity of image folders
    visible,
)
from training.data.sources.plain_files import NotPlainError, check_link, check_plain
from training.data.sources.splits import NAMES, NEEDED, is_divided, split_named
from training.data.sources.target_numbers import check_kind, target_texts
from training.data.sources.unchanged import gone_named
from training.data.sources.wording import counted
from training.data.tables.encoding import nearest
from training.data.tables.reading import CSV, PARQUET, blocks, column_types, is_csv
from training.data.tables.values import kind_of
from training.errors import DataError

FILE_NAME = "file_name"
_LONGEST_NAME = 255  # bytes of a file's name, on all common file systems


class _Entry(NamedTuple):
    """A row of a table: the image that it names, relative to the root, its number as text, and file and row."""

    name: str
    number: str
    where: str


@gone_named()
def list_with_targets(root: Path, table: str, target: str) -> list[ImageFile]:
    """All images under `root`, each with its number from column `target` of the table as text in `label`.

    The table is `table` in `root`, or in each of `train/`, `test/` and `val/`. Raises :class:`DataError` that names the
    first file or row which breaks a rule.
    """
    tables = _find_tables(root, table, target)
    images = set(_images(root))
    entries: dict[str, _Entry] = {}
    for file in tables:
        for entry in _entries(root, file, target):
            if entry.name in entries:
                raise DataError(
                    f"{entry.where}: names the image {entry.name}, which {entries[entry.name].where} names, too. "
                    "Keep one of the two rows."
                )
            if entry.name not in images:
                raise DataError(_absent(root, entry, images))
            entries[entry.name] = entry
    if without := sorted(images - entries.keys()):
        raise DataError(
            f"{root / without[0]}: has no row in {' or '.join(map(str, tables))}, so no target; "
            f"{counted(len(without), 'image has', 'images have')} none. Add a row with its path in {FILE_NAME!r} and "
            f"its {target!r}, or move the image elsewhere."
        )
    divided = _has_splits(root)
    files = [
        (_split(root, entry.name) if divided else "", entry.number, str(root / entry.name))
        for entry in entries.values()
    ]
    _check_splits(root, {split for split, *_ in files})
    # By content, not by target: data.feed=stream would read similar targets together.
    return sorted(_read(files), key=lambda image: (image.split, image.sha256, image.label, image.path))


def _find_tables(root: Path, name: str, target: str) -> list[Path]:
    """The table in `root`, or those in its folders of splits."""
    own, inner = root / name, [file for split in NAMES if (file := root / split / name).is_file()]
    if own.is_file() and inner:
        raise DataError(f"{inner[0]}: a second table of targets beside {own}. Keep one of them.")
    tables = [own] if own.is_file() else inner
    if not tables:
        raise DataError(
            f"{own}: no such table of targets. Write a CSV or Parquet file with the columns {FILE_NAME!r} and "
            f"{target!r} there, or one in train/ and one in test/; ImageFolder(targets=...) gives the table another "
            "name."
        )
    for file in tables:
        if file.suffix.lower() not in (*CSV, *PARQUET):
            raise DataError(f"{file}: the table of targets must end in {' or '.join((*CSV, *PARQUET))}.")
        check_plain(file)
    return tables


def _images(root: Path) -> Iterator[str]:
    """Paths of all image files at any depth, relative to `root`; links are followed, as in folders of classes.

    Raises :class:`DataError` for a link to nothing, and for one to a folder above it.
    """
    waiting: list[tuple[str, Path, frozenset[tuple[int, int]]]] = [("", root, frozenset())]
    while waiting:
        prefix, folder, above = waiting.pop()
        status = folder.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            raise DataError(
                f"{folder}: a link to a folder above it, so the images have no end. Remove the link."
            )
        for entry in visible(folder):
            check_link(Path(entry.path))
            if entry.is_dir():
                waiting.append((f"{prefix}{entry.name}/", Path(entry.path), above | {identity}))
            elif _is_image(entry.name):
                yield f"{prefix}{entry.name}"


def _read(files: list[tuple[str, str, str]]) -> list[ImageFile]:
    """The images with their digests. Raises :class:`DataError` for a file that is empty, not plain, or too large."""
    try:
        return list(_hashed(files))
    except DataError as error:
        if not isinstance(error.__cause__, NotPlainError):
            raise
        # Replace the remedy for class folders by one for rows.
        reason = str(error).removesuffix("Remove it from the class folder.")
        raise DataError(f"{reason}Remove it and its row, or put a plain image file in its place.") from error


def _is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES


def _entries(root: Path, file: Path, target: str) -> Iterator[_Entry]:
    _check_columns(file, target)
    folder = file.parent.relative_to(root).as_posix()
    for rows, first in blocks(file, [FILE_NAME, target]):

        def where(row: int, first: int = first) -> str:
            return f"{file} row {first + row}"

        numbers = target_texts(rows[target], target, where)
        for row, (name, number) in enumerate(zip(rows[FILE_NAME].to_pylist(), numbers, strict=True)):
            if not name:
                raise DataError(
                    f"{where(row)}: column {FILE_NAME!r} is empty. Give the image's path, or remove the row."
                )
            path = os.path.normpath(f"{folder}/{name}")
            if name.startswith("/") or path.split("/")[0] == "..":
                raise DataError(
                    f"{where(row)}: {name!r} leads out of {root}. Paths are relative to the table, and images lie "
                    "inside the image folder."
                )
            yield _Entry(path, number, where(row))


def _check_columns(file: Path, target: str) -> None:
    types = column_types(file)
    for name, remedy in (
        (FILE_NAME, "It holds each image's path, relative to the table."),
        (target, "ImageFolder(target=...) names the column of numbers."),
    ):
        if name not in types:
            raise DataError(f"{file}: no column {name!r}; {nearest(name, list(types))} {remedy}")
    if is_csv(file):
        return
    check_kind(types[target], target, file)
    if kind_of(types[FILE_NAME]) != "category":
        raise DataError(
            f"{file}: column {FILE_NAME!r} is of type {types[FILE_NAME]}, and an image's path is text. Write the "
            "column as strings, with each image's path relative to the table."
        )


def _absent(root: Path, entry: _Entry, images: set[str]) -> str:
    """Message text for an entry that names none of `images`."""
    longest = max(entry.name.split("/"), key=lambda part: len(part.encode()))
    if (size := len(longest.encode())) > _LONGEST_NAME:
        return (
            f"{entry.where}: column {FILE_NAME!r} has {longest[:40] + '…'!r} of {size:,} bytes, and a file's name has "
            f"at most {_LONGEST_NAME}. Give the image's path, relative to the table, or remove the row."
        )
    if spaced := next((image for image in sorted(images) if _trimmed(image) == _trimmed(entry.name)), None):
        return (
            f"{entry.where}: no image {root / entry.name}, but {str(root / spaced)!r}. Spaces around a value of a "
            "table are ignored, so rename the image."
        )
    is_file = os.path.isfile(root / entry.name)  # noqa: PTH113 - Path.is_file raises OSError for some names
    if is_file and not _is_image(entry.name):
        return (
            f"{entry.where}: {entry.name} is not an image file ({', '.join(sorted(IMAGE_SUFFIXES))}). Convert it, or "
            "remove the row."
        )
    return (
        f"{entry.where}: no image {root / entry.name}. Correct the path in {FILE_NAME!r}, or remove the row."
    )


def _trimmed(path: str) -> str:
    """A path without spaces around the name of each folder and of the file."""
    return "/".join(part.strip() for part in path.split("/"))


def _has_splits(root: Path) -> bool:
    """Whether `root` has the folders train/ and test/. Raises :class:`DataError` if it has one of them alone."""
    present = [name for name in NEEDED if (root / name).is_dir()]
    if len(present) == 1:
        missing = next(name for name in NEEDED if name not in present)
        raise DataError(
            f"{root / missing}: missing, though there is {present[0]}/. Add it, or rename {present[0]}/ and let "
            "data.test_share divide the images."
        )
    return bool(present)


def _split(root: Path, name: str) -> str:
    split = split_named(name.partition("/")[0])
    if not split:
        raise DataError(
            f"{root / name}: in none of train/, val/ and test/, so it would not be used. Move it elsewhere, with its "
            "row."
        )
    return split


def _check_splits(root: Path, splits: set[str]) -> None:
    if not splits:
        raise DataError(f"{root}: no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
    if not is_divided(splits):
        raise DataError(
            f"{root}: no images in {' and '.join(split for split in NEEDED if split not in splits)}/."
        )
