"""Small data sources for tests: random pixels in two classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
PARTS = (
    "train/cat/0.png",
    "train/cat/1.png",
    "train/dog/0.png",
    "train/dog/1.png",
    "test/cat/0.png",
    "test/dog/0.png",
)


def random_pixels(count: int, seed: int = 0, shape: tuple[int, ...] = (6, 6, 3)) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape)).astype(np.uint8)


def write_rows(file: Path, pixels: Pixels, labels: list[str], **more: Any) -> Path:
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(pixels))
    pq.write_table(pa.table({"image": column, "label": labels, **more}), file)
    return file
