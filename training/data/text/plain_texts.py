"""Find and read texts without a target: a column of tables, or the lines of text files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from training.data.sources.folder_listing import visible
from training.data.sources.plain_files import check_link, check_plain
from training.data.sources.splits import NAMES, NEEDED, is_divided, split_named
from training.data.tables.reading import blocks
from training.data.tables.values import FEATURE, plain, typed
from training.data.text.class_files import ClassFile
from training.errors import DataError

NO_TARGET = ""  # the target in the notes of a typed copy of texts alone
COUNTED = "tokens"  # name of such a dataset's target: the number of tokens
_EXAMPLES = (
    "Give a .txt file with a text on each line, a folder of such files, maybe in train/ and test/, or a CSV, TSV or "
    "Parquet file with a column of text."
)


def find_text_files(root: Path) -> list[ClassFile]:
    """The file `root`, or all files of the folder `root`, flat or in `train/` and `test/` (and optionally `val/`).

    Raises :class:`DataError` for a folder without files, and for other folders in it.
    """
    if root.is_file():
        return _checked([ClassFile("", None, root, False)])
    entries = {entry.name: Path(entry.path) for entry in visible(root)}
    for path in entries.values():
        check_link(path)
    folders = sorted(name for name, path in entries.items() if path.is_dir())
    if not folders:
        return _checked(_files(root, ""))
    if (
        set(folders) - set(NAMES)
        or len(folders) < len(entries)
        or not is_divided(set(map(split_named, folders)))
    ):
        raise DataError(
            f"{root}: has the folder {folders[0]}/, and not just {' and '.join(NEEDED)}. {_EXAMPLES}"
        )
    return _checked([file for name in folders for file in _files(entries[name], split_named(name))])


def _files(folder: Path, split: str) -> list[ClassFile]:
    paths = sorted(Path(entry.path) for entry in visible(folder))
    if not paths or any(path.is_dir() for path in paths):
        raise DataError(f"{folder}: {'has a folder in it' if paths else 'has no files'}. {_EXAMPLES}")
    return [ClassFile(split, None, path, False) for path in paths]


def _checked(files: list[ClassFile]) -> list[ClassFile]:
    for file in files:
        check_plain(file.path)
    return files


def column_batches(files: Sequence[tuple[str, Path]], text: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the column `text` of tables in batches, each with its split; the columns are those of a typed copy."""
    for number, (split, file) in enumerate(files):
        for block in blocks(file, [text]):
            texts, _ = typed(plain(block.rows[text]), "category")
            rows = len(texts)
            yield (
                split,
                pa.RecordBatch.from_pydict(
                    {
                        f"{FEATURE}{text}": texts,
                        "label": pa.array(np.zeros(rows)),
                        "file": pa.array(np.full(rows, number, np.int32)),
                        "row": pa.array(np.arange(block.first, block.first + rows, dtype=np.int64)),
                    }
                ),
            )
