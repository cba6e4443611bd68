"""The guides' way from images to Parquet (P5a): nested lists through pandas, then a Ray Data `map` of PIL rows.

Written afresh from their description: the raw data go through a DataFrame of lists into Parquet, a function a row turns
each list into a PIL image and that into a normalised tensor, and the outcome is written as Parquet again.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.baselines.images import read


def prepare_as_guides_do(raw: Path, out: Path) -> dict[str, Any]:
    """Prepare both splits under `out`, on a Ray cluster that is connected already; returns counts of labels."""
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
