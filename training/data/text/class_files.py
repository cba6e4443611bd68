"""Find texts that are stored by class: a file for each class with a text on each line, or a folder of text files."""

import codecs
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from training.data.sources.folder_listing import visible
from training.data.sources.plain_files import check_link, check_plain
from training.data.sources.splits import NAMES, NEEDED, is_divided, split_named
from training.data.sources.unchanged import gone_named
from training.data.tables.values import FEATURE
from training.errors import DataError

_BATCH_ROWS = 8192
_BATCH_CHARACTERS = 1 << 26
TXT = ".txt"
_BYTE_ORDER_MARK = "\ufeff"
_OF_ANOTHER_ENCODING = (
    'Convert the file to UTF-8, or name its encoding in the recipe, as Text(path, encoding="latin-1").'
)
_EXAMPLES = (
    "Give a CSV, TSV or Parquet file; or a folder with a file NAME.CLASS for each class, as reviews.pos and "
    "reviews.neg, a text on each line; or a folder with a folder for each class, a text in each file."
)


class ClassFile(NamedTuple):
    """A file with texts of one class. With `whole`, the file is one text; otherwise each line is a text.

    `label` is None for texts without a target.
    """

    split: str
    label: str | None
    path: Path
    whole: bool


def find_class_files(root: Path) -> list[ClassFile]:
    """The files of all classes under the folder `root`, flat or in `train/` and `test/` (and optionally `val/`).

    Raises :class:`DataError` if `root` has neither one file nor one folder for each class.
    """
    entries = {entry.name: Path(entry.path) for entry in visible(root)}
    for path in entries.values():
        check_link(path)
    divided = [name for name in NAMES if name in entries and entries[name].is_dir()]
    if not divided:
        return _in_folder(root, "")
    splits = {split_named(name) for name in divided}
    if not is_divided(splits) or set(entries) != set(divided):
        others = sorted(set(entries) - set(divided)) or [
            f"no {name}/" for name in NEEDED if name not in splits
        ]
        raise DataError(
            f"{root}: has {divided[0]}/, and beside it {others[0]}. A folder with splits has train/ and test/, maybe "
            "val/, and nothing else."
        )
    return [file for name in divided for file in _in_folder(root / name, split_named(name))]


def _in_folder(root: Path, split: str) -> list[ClassFile]:
    entries = sorted((Path(entry.path) for entry in visible(root)), key=lambda path: path.name)
    folders = [path for path in entries if path.is_dir()]
    if folders and len(folders) < len(entries):
        file = next(path for path in entries if path not in folders)
        raise DataError(f"{file}: beside the folders of classes, so it would not be used. Move it elsewhere.")
    files = _folders(folders, split) if folders else _files(root, entries, split)
    if len({class_file.label for class_file in files}) < 2:
        raise DataError(f"{root}: texts of fewer than 2 classes. {_EXAMPLES}")
    for class_file in files:
        check_plain(class_file.path)
    return files


def _folders(folders: Sequence[Path], split: str) -> list[ClassFile]:
    files = []
    for folder in folders:
        entries = sorted(visible(folder), key=lambda entry: entry.name)
        if not entries:
            raise DataError(f"{folder}: no texts of this class. Add some, or remove the folder.")
        for entry in entries:
            if entry.is_dir():
                raise DataError(f"{entry.path}: a folder in the folder of a class. {_EXAMPLES}")
            files.append(ClassFile(split, folder.name, Path(entry.path), True))
    return files


def _files(root: Path, files: Sequence[Path], split: str) -> list[ClassFile]:
    """Files NAME.CLASS of one NAME, or files CLASS.txt."""
    if files and all(path.suffix.lower() == TXT for path in files):
        return [ClassFile(split, path.stem, path, False) for path in files]
    if len({path.stem for path in files}) > 1 or any(not path.suffix for path in files):
        listed = ", ".join(path.name for path in files[:4])
        raise DataError(f"{root}: its files ({listed}) are not named NAME.CLASS with one NAME. {_EXAMPLES}")
    return [ClassFile(split, path.suffix[1:], path, False) for path in files]


def class_batches(
    files: Sequence[ClassFile], encoding: str, column: str
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield texts and classes of the files in batches, each with its split; the columns are those of a typed copy.

    :mod:`training.data.tables.typed_copy` describes the columns. The text has no spaces around it, and is null if
    empty. Raises :class:`DataError` that names the file and line with bytes that are not of the encoding.
    """
    for number, file in enumerate(files):
        texts, start = _texts(file, encoding), 0
        while part := list(_limited(texts)):
            yield (
                file.split,
                pa.RecordBatch.from_pydict(
                    {
                        f"{FEATURE}{column}": pa.array(part, pa.string()),
                        "label": _labels(file.label, len(part)),
                        "file": pa.array([number] * len(part), pa.int32()),
                        "row": pa.array(range(start + 1, start + len(part) + 1), pa.int64()),
                    }
                ),
            )
            start += len(part)


def _limited(texts: Iterator[str | None]) -> Iterator[str | None]:
    """The next texts: at most `_BATCH_ROWS`, and no more once they have `_BATCH_CHARACTERS`."""
    characters = 0
    for text in islice(texts, _BATCH_ROWS):
        yield text
        characters += len(text or "")
        if characters >= _BATCH_CHARACTERS:
            return


def _labels(label: str | None, rows: int) -> pa.Array:
    """The class of each row; 0 for texts without a target."""
    return pa.array([label] * rows, pa.string()) if label is not None else pa.array([0.0] * rows)


def _texts(file: ClassFile, encoding: str) -> Iterator[str | None]:
    if file.whole:
        with gone_named():
            content = file.path.read_bytes()
        yield decoded(content, encoding, f"{file.path}")
        return
    if "\n".encode(encoding).removeprefix(codecs.BOM_UTF8) != b"\n":
        raise DataError(
            f"{file.path}: {encoding} does not write the end of a line as the byte 10, by which lines are found. "
            "Convert the file to UTF-8."
        )
    for number, line in enumerate(lines_of(file.path), 1):
        yield decoded(line, encoding, f"{file.path} line {number}")


def lines_of(file: Path) -> Iterator[bytes]:
    """The lines of a file, without the bytes that end them, read one at a time; an empty file has one empty line."""
    line = None
    with gone_named(), file.open("rb") as stream:
        # Not str.splitlines, which also splits at characters that may be part of a text, such as U+2028.
        for line in stream:
            yield line.removesuffix(b"\n")
    if line is None:
        yield b""


def decoded(content: bytes, encoding: str, where: str, remedy: str = _OF_ANOTHER_ENCODING) -> str | None:
    """A text without spaces around it, and without the mark that some programs write at the start of UTF-8 files.

    None if empty. `where` names the text in messages. Raises :class:`DataError`, whose message ends with `remedy`, for
    bytes that are not of the encoding.
    """
    try:
        return content.decode(encoding).removeprefix(_BYTE_ORDER_MARK).strip() or None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: is not {encoding} (byte 0x{content[error.start]:02x}). {remedy}"
        ) from error
