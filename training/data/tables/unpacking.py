"""Unpack the part files of a table's split into the arrays of :class:`training.data.columns.Columns`."""

from pathlib import Path

import numpy as np

from training.data.images.decoding import binary_to_numpy
from training.data.manifest import read_parts
from training.data.tables.encoding import encode
from training.data.tables.typed_copy import WEIGHT
from training.data.tables.values import FEATURE
from training.records import DatasetVersion, Split


def unpack_table(version: DatasetVersion, split: Split, folder: Path) -> None:
    """Write `inputs.npy`, `targets.npy`, `digests.npy` to `folder`.

    Also `validation.npy` if the rows are marked, and `weights.npy` if they have weights.
    """
    schema = version.table
    assert schema is not None
    rows = version.rows(split)
    targets = np.empty(rows, np.int64 if version.classes else np.float64)
    digests, marks = np.empty(rows, np.uint64), np.empty(rows, np.bool_)
    marked = split == "train" and version.validation_rows is not None
    features = [f"{FEATURE}{column.name}" for column in schema.columns]
    weights = np.empty(rows if schema.weight is not None else 0, np.float64)
    further = [*(["validation"] if marked else []), *([WEIGHT] if len(weights) else [])]
    columns = [*features, "label", "digest", *further]
    start = 0
    # Written to a file, not to a memory map: on a full disk, a file write raises an error, but a write to mapped
    # memory kills the process.
    with (folder / "inputs.npy").open("wb") as inputs:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, *version.shape)}
        np.lib.format.write_array_header_1_0(inputs, header)
        for table in read_parts(version, split, columns):
            stop = start + len(table)
            inputs.write(np.ascontiguousarray(encode(table, schema, FEATURE), "<f4").data)
            targets[start:stop] = table["label"].to_numpy()
            digests[start:stop] = binary_to_numpy(table["digest"], np.uint64).reshape(-1, 2)[:, 0]
            if marked:
                marks[start:stop] = table["validation"].to_numpy()
            if len(weights):
                weights[start:stop] = table[WEIGHT].to_numpy()
            start = stop
    np.save(folder / "targets.npy", targets)
    np.save(folder / "digests.npy", digests)
    if marked:
        np.save(folder / "validation.npy", marks)
    if len(weights):
        np.save(folder / "weights.npy", weights)
