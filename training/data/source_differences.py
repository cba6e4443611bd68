"""What differs between a dataset version and a source whose rows are not prepared yet, for `evergreen plan`.

Rows of a table are read from its typed copy, and images of a folder are known by the digests in its listing.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from training.data.differences import (
    Differences,
    Rows,
    class_numbers,
    common_columns,
    compared,
    is_same_key,
    rows_of,
)
from training.data.preparation.prepare import used_splits
from training.data.row_digests import Digests, first_halves
from training.records import DatasetVersion, SourceFiles, TableSchema
from training.settings.schema import DataSettings


def differences_of_source(
    old: DatasetVersion, files: SourceFiles, settings: DataSettings, transform: str
) -> Differences | None:
    """The differences that the rows of `files` will have from those of `old`; None if only preparation can tell.

    That is so for other kinds of sources, for a limited number of rows, and where preparation leaves rows out.
    `transform` is the digest of the recipe's function `transform_rows`. Raises :class:`DataError` when a part file or
    the source's rows can't be read.
    """
    if old.dropped or settings.max_train_rows is not None or settings.max_test_rows is not None:
        return None
    if files.kind == "table" and old.table is not None and not old.has_images:
        return _of_table(old, files, settings, transform)
    if files.kind == "folder" and old.table is None:
        return _of_folder(old, files, settings)
    return None


def _of_table(old: DatasetVersion, files: SourceFiles, settings: DataSettings, transform: str) -> Differences:
    from training.data.tables.keys import KEY
    from training.data.tables.shards import feature_digests
    from training.data.tables.typed_copy import read_notes
    from training.data.tables.values import as_text

    notes = read_notes(Path(files.root))
    schema = TableSchema(target=notes.target, columns=(), given=notes.columns)
    new = old.model_copy(update={"table": schema, "key": notes.key, "transform": transform})
    by_key, columns = is_same_key(old, new), common_columns(old, new)
    identity, content, label = ([np.empty(0, np.uint64)] for _ in range(3))
    names: set[str] = set()
    for batch in _batches(files, settings):
        content.append(first_halves(feature_digests(batch, notes.columns if columns is None else columns)))
        identity.append(first_halves(batch[KEY]) if by_key else content[-1])
        if old.classes:
            coded = as_text(batch["label"]).dictionary_encode()
            names.update(coded.dictionary.to_pylist())
            label.append(class_numbers(coded.dictionary.to_pylist())[coded.indices.to_numpy()])
        else:
            label.append((batch["label"].to_numpy().astype(np.float64) + 0.0).view(np.uint64))
    after = Rows(*(np.concatenate(parts) for parts in (identity, content, label)))
    new = new.model_copy(update={"classes": tuple(sorted(names))})
    return compared(old, new, rows_of(old, by_key, columns), after)


def _batches(files: SourceFiles, settings: DataSettings) -> Iterator[pa.RecordBatch]:
    """The rows of a table's typed copy that have a target."""
    from training.data.tables.typed_copy import read_copy, read_notes

    rows = read_notes(Path(files.root)).rows
    for split in used_splits(files, settings):
        for batch in read_copy(Path(files.root), split, range(rows[split])):
            yield batch.filter(batch["label"].is_valid())


def _of_folder(old: DatasetVersion, files: SourceFiles, settings: DataSettings) -> Differences:
    from training.data.sources.folder import read_listing

    listing = read_listing(files).to_pydict()
    used = set(used_splits(files, settings))
    chosen = [row for row, split in enumerate(listing["split"]) if split in used]
    digests = b"".join(bytes.fromhex(listing["sha256"][row])[:8] for row in chosen)
    content: Digests = np.frombuffer(digests, np.uint64)
    numbers = dict(zip(files.classes, class_numbers(files.classes).tolist(), strict=True))
    labels = np.array([numbers[listing["label"][row]] for row in chosen], np.uint64)
    new = old.model_copy(update={"classes": files.classes})
    return compared(old, new, rows_of(old, False, None, of_image="source"), Rows(content, content, labels))
