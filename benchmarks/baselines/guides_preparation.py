"""Preparation of images as in the guides (P5a): nested lists through pandas, then a Ray Data `map` over PIL images.

Written from the guides' description: the raw data pass through a DataFrame of lists into Parquet; a function per row
turns each list into a PIL image and then into a normalised tensor; the result is written as Parquet again.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.baselines.images import read


def prepare_as_guides_do(raw: Path, out: Path) -> dict[str, Any]:
    """Prepare both splits under `out`, on a connected Ray cluster; returns the counts of labels."""
    import pandas as pd
    import ray.data

    labels: dict[str, Any] = {}
    for split in ("train", "test"):
        pixels, numbers = read(raw, split)
        frame = pd.DataFrame({"image": pixels.tolist(), "label": np.asarray(numbers)})
        ray.data.from_pandas(frame).write_parquet(str(out / split / "raw"))
        dataset = ray.data.read_parquet(str(out / split / "raw")).map(_transform)
        dataset.write_parquet(str(out / split / "tensors"))
        labels[split] = np.bincount(numbers).tolist()
    return {"labels": labels}


def _transform(row: dict[str, Any]) -> dict[str, Any]:
    from PIL import Image
    from torchvision.transforms import Compose, Normalize, ToTensor

    transform = Compose([ToTensor(), Normalize((0.5,), (0.5,))])
    row["image"] = transform(Image.fromarray(np.array(row["image"], dtype=np.uint8))).numpy()
    return row
