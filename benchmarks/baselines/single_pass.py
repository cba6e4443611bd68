"""From idx files to Parquet in one pass with NumPy and pyarrow: the reference for preparation (P5b).

The result has the properties of a dataset version: typed columns, a digest per row, page checksums, sha256 of each
file, label counts, mean and standard deviation, no image in both splits, and a manifest that is written last.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.baselines.images import CLASSES, read

_ROWS = 8192


def single_pass(raw: Path, out: Path) -> dict[str, Any]:
    """Write `out`; returns its manifest. Raises ValueError for a label without a class or an image in both splits."""
    out.mkdir(parents=True)
    manifest: dict[str, Any] = {"files": {}, "labels": {}}
    seen: dict[str, set[bytes]] = {}
    total = square = count = 0
    for split in ("train", "test"):
        pixels, labels = read(raw, split)
        if int(labels.max()) >= CLASSES:
            raise ValueError(f"{split}: label {int(labels.max())} has no class")
        manifest["labels"][split] = np.bincount(labels, minlength=CLASSES).tolist()
        seen[split] = set()
        for start in range(0, len(labels), _ROWS):
            part = np.ascontiguousarray(pixels[start : start + _ROWS]).reshape(
                -1, math.prod(pixels.shape[1:])
            )
            digests = [hashlib.sha256(row.data).digest()[:16] for row in part]
            seen[split].update(digests)
            if split == "train":
                counts = np.bincount(part.ravel(), minlength=256)
                total += int(counts @ np.arange(256))
                square += int(counts @ np.arange(256) ** 2)
                count += part.size
            table = pa.table(
                {
                    "image": pa.FixedSizeBinaryArray.from_buffers(
                        pa.binary(part.shape[1]), len(part), [None, pa.py_buffer(part)]
                    ),
                    "label": np.asarray(labels[start : start + _ROWS], np.int32),
                    "digest": pa.array(digests, pa.binary(16)),
                    "where": [f"{split} row {row}" for row in range(start, start + len(part))],
                }
            )
            file = out / f"{split}-{start:08d}.parquet"
            pq.write_table(table, file, compression="none", use_dictionary=False, write_page_checksum=True)
            manifest["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    if seen["train"] & seen["test"]:
        raise ValueError("an image is in both splits")
    mean = total / count / 255
    manifest |= {"mean": mean, "std": math.sqrt(square / count / 255**2 - mean**2)}
    (out / "manifest.json").write_text(json.dumps(manifest))
    return manifest
