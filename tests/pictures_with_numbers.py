"""Real pictures with a number for each: scikit-learn's digits as PNG files, and how bright each is on average."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from sklearn.datasets import load_digits

TARGET = "ink"


def pixels_of(count: int) -> np.ndarray:
    """uint8 pictures (count, 8, 8)."""
    return (load_digits().images[:count] * 255 / 16).astype(np.uint8)


def ink_of(pixels: np.ndarray) -> np.ndarray:
    """100 + the mean of each picture's pixels / 16, float64: far from zero, so that only a scaled target is learned."""
    return 100 + pixels.mean(axis=(1, 2)) / 16


def write_folder(root: Path, count: int = 12, table: str = "metadata.csv", folders: int = 2) -> Path:
    """Pictures in sub-folders 0, 1 ... of `root`, and a table with their paths and numbers; returns `root`."""
    pixels = pixels_of(count)
    lines = [f"file_name,{TARGET},writer"]
    for number, (picture, ink) in enumerate(zip(pixels, ink_of(pixels).tolist(), strict=True)):
        name = f"{number % folders}/{number:04d}.png"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(root / name)
        lines.append(f"{name},{ink!r},someone")
    (root / table).write_text("\n".join(lines) + "\n")
    return root


def write_parquet(file: Path, count: int = 12, label: str = TARGET) -> Path:
    """The same pictures and numbers in one Parquet file."""
    pixels = pixels_of(count)
    encoded = []
    for picture in pixels:
        Image.fromarray(picture).save(out := io.BytesIO(), "png")
        encoded.append(out.getvalue())
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": encoded, label: ink_of(pixels)}), file)
    return file
