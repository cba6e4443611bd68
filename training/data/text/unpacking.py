"""Read the part files of text: unpack them to arrays, or encode their texts by any tokenizer."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.images.decoding import binary_to_numpy
from training.data.manifest import read_parts
from training.data.tables.values import FEATURE
from training.data.text.shards import TOKENS
from training.data.text.tokenizers import Encoder
from training.records import DatasetVersion, Split


def unpack_text(version: DatasetVersion, split: Split, folder: Path) -> None:
    """Write `inputs.npy`, `targets.npy`, `digests.npy` and, if the rows are marked, `validation.npy` to `folder`.

    The inputs are int64 token ids (rows, tokens).
    """
    rows = version.rows(split)
    targets = np.empty(rows, np.int64 if version.classes else np.float64)
    digests, marks = np.empty(rows, np.uint64), np.empty(rows, np.bool_)
    marked = split == "train" and version.validation_rows is not None
    start = 0
    # Written to a file, not to a memory map: on a full disk, a file write raises an error, but a write to mapped
    # memory kills the process.
    with (folder / "inputs.npy").open("wb") as inputs:
        header = {"descr": "<i8", "fortran_order": False, "shape": (rows, *version.shape)}
        np.lib.format.write_array_header_1_0(inputs, header)
        columns = [TOKENS, "label", "digest", *(["validation"] if marked else [])]
        for table in read_parts(version, split, columns):
            stop = start + len(table)
            inputs.write(token_ids(table).data)
            targets[start:stop] = table["label"].to_numpy()
            digests[start:stop] = binary_to_numpy(table["digest"], np.uint64).reshape(-1, 2)[:, 0]
            if marked:
                marks[start:stop] = table["validation"].to_numpy()
            start = stop
    np.save(folder / "targets.npy", targets)
    np.save(folder / "digests.npy", digests)
    if marked:
        np.save(folder / "validation.npy", marks)


def text_ids(version: DatasetVersion, split: Split, tokenizer: str) -> npt.NDArray[np.int64]:
    """The token ids of a split's texts by the tokenizer in the JSON `tokenizer`: int64 (rows, its tokens)."""
    assert version.table is not None
    encoder, name = Encoder(tokenizer), f"{FEATURE}{version.table.columns[0].name}"
    parts = [encoder.encode(part[name].to_pylist()).ids for part in read_parts(version, split, [name])]
    return np.concatenate(parts)


def token_ids(part: pa.Table) -> npt.NDArray[np.int64]:
    """The token ids of a part file's rows, (rows, tokens)."""
    return np.ascontiguousarray(binary_to_numpy(part[TOKENS], np.dtype("<i4")).astype("<i8"))
