"""A real registered model whose predictions are known: the strongest colour, and the half of the image it is in."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from tasks.model_formats.torch_export import log_serving_model
from tasks.registry.aliases import CHALLENGER, CHAMPION
from tasks.trackers.mlflow_run import connect
from training.records import DatasetVersion
from training.storage.paths import Home

MODEL = "halves"
SHAPE = (3, 8, 8)
COLOURS = ("red", "green", "blue")
CLASSES = tuple(f"{colour} {half}" for colour in COLOURS for half in ("top", "bottom"))
BROKEN = b"\x89PNG\r\n\x1a\n and then nothing that a decoder knows"


def register(home: Home, versions: int, metadata: dict[str, Any] | None = None, model: str = MODEL) -> Any:
    """Register the model `versions` times: first champion, then challenger. Returns MLflow's client."""
    from torch import nn

    class Halves(nn.Module):
        def forward(self, images):
            halves = nn.functional.adaptive_avg_pool2d(images.float() / 255, (2, 1))
            return nn.functional.softmax(20 * halves.flatten(1), dim=1)

    client = connect(None, home)
    experiment = client.create_experiment(model, artifact_location=(home.mlflow_artifacts / model).as_uri())
    run = client.create_run(experiment).info.run_id
    dataset = DatasetVersion(
        name=model,
        fingerprint="0",
        path="-",
        classes=CLASSES,
        shape=SHAPE,
        parts={},
        label_counts={},
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        source_digest="0",
        source_origin="-",
    )
    named = {"classes": list(CLASSES)} if metadata is None else metadata
    uri = log_serving_model(run, Halves().eval(), dataset, np.zeros((2, *SHAPE), np.uint8), named)
    client.create_registered_model(model)
    for number, alias in zip(range(versions), (CHAMPION, CHALLENGER), strict=False):
        made = client.create_model_version(
            model, source=uri, run_id=run, model_id=uri.removeprefix("models:/")
        )
        client.set_registered_model_alias(model, alias, made.version)
        assert int(made.version) == number + 1
    return client


def picture(label: str, size: int = 8, strength: int = 200) -> Image.Image:
    """A black square with the colour and the half that `label` names, such as "red top"."""
    colour, half = label.split()
    pixels = np.zeros((size, size, 3), np.uint8)
    rows = slice(0, size // 2) if half == "top" else slice(size // 2, size)
    pixels[rows, :, COLOURS.index(colour)] = strength
    return Image.fromarray(pixels)


def encoded(label: str, size: int = 8, kind: str = "PNG") -> bytes:
    """The picture of `label` as the bytes of an image file."""
    out = io.BytesIO()
    picture(label, size).save(out, kind)
    return out.getvalue()


def save(folder: Path, names_and_labels: Iterable[tuple[str, str]], size: int = 8) -> None:
    """Save one picture per (file name, label) in `folder`."""
    for name, label in names_and_labels:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        picture(label, size).save(file)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The predictions in a Parquet file or folder, one dictionary per row."""
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows
