"""Score chunks of images with a registered model, in this process or on Ray; both give equal rows in equal order.

On Ray, reading and scoring overlap: tasks decode images, and actors, which load the model once, score them. The model
contains no Evergreen code: plain MLflow loads it. Fails with SettingError when the model does not take uint8 images.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tasks.inference.unlabelled_images import Batch, Chunk, read_chunk, rows_per_batch
from tasks.registry.aliases import load_version
from tasks.registry.safe_loading import image_shape
from tasks.trackers.mlflow_run import connect
from training.data.images.decoding import Pixels
from training.errors import DataError, SettingError, classify
from training.records import ImageShape
from training.storage.paths import Home
from training.trainers.torch.serving import Probabilities

if TYPE_CHECKING:
    pass

log = logging.getLogger("evergreen.predict")

Predict = Callable[[Pixels], Probabilities]


@dataclass(frozen=True)
class Served:
    """A loaded version: its input shape, its classes, and where other processes can load it from."""

    model: str
    version: str
    shape: ImageShape
    classes: tuple[str, ...]
    predict: Predict
    tracking_uri: str | None
    home: str


def open_served(model: str, number: str, tracking_uri: str | None, home: Home) -> Served:
    """Load a version, and read image shape and classes from its signature and metadata.

    Raises :class:`SettingError` when the version does not take images, or does not name its classes.
    """
    loaded = load_version(home, model, number)
    shape = image_shape(loaded.metadata.signature, f"model {model} version {number}")
    classes = tuple(map(str, (loaded.metadata.metadata or {}).get("classes", ())))
    outputs = loaded.metadata.signature.outputs.inputs[0].shape[-1]
    if len(classes) != outputs:
        raise SettingError(
            f"model {model} version {number}: gives {outputs} numbers a row and names {len(classes)} classes "
            "(metadata `classes`), so it can't be said which is which. Register it with Evergreen, which names them."
        )
    return Served(model, number, shape, classes, cast(Predict, loaded.predict), tracking_uri, str(home.root))


def in_process(chunks: list[Chunk], served: Served) -> Iterator[Batch]:
    """Score the chunks in this process, one after the other."""
    for chunk in chunks:
        for batch in read_chunk(chunk, served.shape):
            yield score_batch(served.predict, batch)


def over_ray(chunks: list[Chunk], served: Served) -> Iterator[Batch]:
    """Score the chunks on the Ray cluster that this process is connected to, in the order of `chunks`.

    Raises a worker's error as the Evergreen error that :func:`training.errors.classify` finds for it, if any.
    """
    import ray.data
    from ray.data import ActorPoolStrategy

    share = _shares(ray.cluster_resources().get("CPU", 1.0))
    log.info(
        "scoring on up to %d Ray actors of %g CPU, reading with what they leave", share.actors, share.actor
    )
    rows = [{"chunk": chunk.model_dump_json()} for chunk in chunks]
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
    dataset.context.execution_options.preserve_order = True
    read = dataset.map_batches(
        partial(_read, shape=served.shape), batch_size=1, batch_format="numpy", num_cpus=share.reader
    )
    scored = read.map_batches(
        ScoringActor,
        fn_constructor_args=(served.model, served.version, served.tracking_uri, served.home),
        batch_size=None,
        batch_format="numpy",
        compute=ActorPoolStrategy(min_size=1, max_size=share.actors),
        num_cpus=share.actor,
    )
    try:
        for batch in scored.iter_batches(batch_size=None, batch_format="numpy"):
            yield cast(Batch, batch)
    except Exception as error:
        if (known := classify(error)) is not None:
            raise known from error
        raise


def score_batch(predict: Callable[[Pixels], Probabilities], batch: Batch) -> Batch:
    """Replace a batch's images by `probabilities`, float32 of (rows, classes); NaN for images that could not be read.

    Raises :class:`DataError` when the model returns a probability that is not finite.
    """
    good = np.flatnonzero(batch["error"] == "")
    images = batch["image"]
    step = rows_per_batch(images.shape[1:])
    # Without a readable image the model scores a placeholder, only to find the number of classes.
    parts = [predict(np.array(images[good[start : start + step]])) for start in range(0, len(good), step)]
    made = np.concatenate(parts or [predict(np.array(images[:1]))[:0]])
    if not np.isfinite(made).all():
        first = batch["where"][good[int(np.argwhere(~np.isfinite(made))[0, 0])]]
        raise DataError(
            f"{first}: the model gives a probability that is not finite. Take another version: name another alias, or "
            "return to the champion before with `evergreen rollback`, if there was one."
        )
    probabilities = np.full((len(images), made.shape[1]), np.nan, np.float32)
    probabilities[good] = made
    return {"where": batch["where"], "error": batch["error"], "probabilities": probabilities}


class ScoringActor:
    """Ray actor that loads the model when it starts, and then scores batches."""

    def __init__(self, model: str, number: str, tracking_uri: str | None, home: str) -> None:
        place = Home(Path(home))
        connect(tracking_uri, place)
        self._predict = cast(Predict, load_version(place, model, number).predict)

    def __call__(self, batch: Batch) -> Batch:
        return score_batch(self._predict, batch)


@dataclass(frozen=True)
class _Shares:
    """Number of actors, and the CPUs of one actor and of one reading task."""

    actors: int
    actor: float
    reader: float


def _shares(cpus: float) -> _Shares:
    """Divide `cpus` CPUs between scoring actors and reading tasks.

    One CPU stays free for readers: otherwise actors and readers would deadlock. A reader requests less CPU than an
    actor, because Ray fuses operators with equal requests, and fused operators do not overlap.
    """
    return _Shares(int(cpus) - 1, 1.0, 0.9) if cpus >= 2 else _Shares(1, 0.5 * cpus, 0.4 * cpus)


def _read(batch: dict[str, Any], shape: ImageShape) -> Iterator[Batch]:
    for text in batch["chunk"]:
        yield from read_chunk(Chunk.model_validate_json(text), shape)
