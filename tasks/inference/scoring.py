"""Score chunks of rows with a registered model, in this process or on Ray; both give the same rows in the same order.

On Ray, reading and scoring overlap: tasks read the rows, and actors, which load the model once, score the rows. Code
that comes with the model is not run (:meth:`tasks.model_formats.base.ModelFormat.load`).
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from tasks.inference.changed_rows import ChangedImages
from tasks.inference.inputs import Batch, Chunk, Reader
from tasks.inference.outputs import Outputs, outputs_of
from tasks.inference.unlabelled_images import Images
from tasks.inference.unlabelled_tables import Tables
from tasks.inference.unlabelled_texts import Texts
from tasks.model_formats.base import Registered
from tasks.registry.aliases import load_version
from tasks.trackers.mlflow_run import connect
from training.data.preparation.row_function import RowFunction
from training.errors import DataError, classify
from training.problems.base import Predict
from training.storage.paths import Home

log = logging.getLogger("evergreen.predict")


@dataclass(frozen=True)
class LoadedVersion:
    """A loaded version with its reader of inputs and its outputs, and where other processes load the version from."""

    model: str
    version: str
    reader: Reader
    outputs: Outputs
    predict: Predict
    tracking_uri: str | None
    home: str


def open_served(
    model: str, number: str, tracking_uri: str | None, home: Home, function: RowFunction | None = None
) -> LoadedVersion:
    """Load a version, and read from its signature and metadata which inputs it takes and what it predicts.

    `function` changes the rows before the model scores them (:func:`tasks.inference.changed_rows.function_of`).

    Raises :class:`training.errors.SettingError` when the version takes neither images nor a table, or does not name its
    classes.
    """
    registered = load_version(home, model, number)
    outputs = outputs_of(registered, f"model {model} version {number}")
    reader = _reader_of(registered, function)
    return LoadedVersion(model, number, reader, outputs, registered.predict, tracking_uri, str(home.root))


def _reader_of(registered: Registered, function: RowFunction | None) -> Reader:
    if registered.table is not None and registered.table.text is not None:
        return Texts(registered.table.columns[0].name, registered.tokenizer)
    if registered.table is not None and registered.table.columns:
        return Tables(registered.table, function)
    channels, height, width = registered.shape
    images = Images((channels, height, width))
    return images if function is None else ChangedImages(images, function)


def in_process(chunks: list[Chunk], served: LoadedVersion) -> Iterator[Batch]:
    """Score the chunks in this process, one after another."""
    for chunk in chunks:
        for batch in served.reader.read(chunk):
            yield score_batch(served.predict, batch, served.reader.rows_at_once, served.outputs.value)


def over_ray(chunks: list[Chunk], served: LoadedVersion) -> Iterator[Batch]:
    """Score the chunks on the Ray cluster that this process is connected to, in the order of `chunks`.

    Raises an error of a Ray worker as the Evergreen error that :func:`training.errors.classify` returns for it, if
    any.
    """
    import ray.data
    from ray.data import ActorPoolStrategy

    share = _shares(ray.cluster_resources().get("CPU", 1.0))
    log.info("scoring on up to %d Ray actors of %g CPU, reading on the other CPUs", share.actors, share.actor)
    rows = [{"chunk": chunk.model_dump_json()} for chunk in chunks]
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
    dataset.context.execution_options.preserve_order = True
    read = dataset.map_batches(
        partial(_read, reader=served.reader), batch_size=1, batch_format="numpy", num_cpus=share.reader
    )
    scored = read.map_batches(
        ScoringActor,
        fn_constructor_args=(
            served.model,
            served.version,
            served.tracking_uri,
            served.home,
            served.reader.rows_at_once,
            served.outputs.value,
        ),
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


def score_batch(predict: Predict, batch: Batch, rows_at_once: int, value: str) -> Batch:
    """Replace a batch's `inputs` by `predictions`, float32 with one entry per row; NaN for unusable rows.

    Raises :class:`DataError` when the model returns a `value` ("probability", "number") that is not finite.
    """
    good = np.flatnonzero(batch["error"] == "")
    inputs = batch["inputs"]
    starts = range(0, len(good), rows_at_once)
    # Without a usable row, the model scores a placeholder, only to get the shape of its predictions.
    parts = [predict(np.array(inputs[good[start : start + rows_at_once]])) for start in starts]
    made = np.concatenate(parts or [predict(np.array(inputs[:1]))[:0]])
    if not np.isfinite(made).all():
        first = batch["where"][good[int(np.argwhere(~np.isfinite(made))[0, 0])]]
        raise DataError(
            f"{first}: the model gives a {value} that is not finite. Take another version: name another alias, or "
            "return to the champion before with `evergreen rollback`, if there was one."
        )
    predictions = np.full((len(inputs), *made.shape[1:]), np.nan, np.float32)
    predictions[good] = made
    return {name: column for name, column in batch.items() if name != "inputs"} | {"predictions": predictions}


class ScoringActor:
    """Ray actor that loads the model when it starts, and then scores batches."""

    def __init__(
        self,
        model: str,
        number: str,
        tracking_uri: str | None,
        home_folder: str,
        rows_at_once: int,
        value: str,
    ) -> None:
        home = Home(Path(home_folder))
        connect(tracking_uri, home)
        self._predict = load_version(home, model, number).predict
        self._rows_at_once, self._value = rows_at_once, value

    def __call__(self, batch: Batch) -> Batch:
        return score_batch(self._predict, batch, self._rows_at_once, self._value)


@dataclass(frozen=True)
class _Shares:
    """Number of scoring actors, and the numbers of CPUs for one actor and for one reading task."""

    actors: int
    actor: float
    reader: float


def _shares(cpus: float) -> _Shares:
    """Divide `cpus` CPUs between scoring actors and reading tasks.

    One CPU is reserved for reading: otherwise actors and reading tasks would deadlock. A reading task requests less
    CPU than an actor, because Ray fuses operators with equal requests, and fused operators do not overlap.
    """
    return _Shares(int(cpus) - 1, 1.0, 0.9) if cpus >= 2 else _Shares(1, 0.5 * cpus, 0.4 * cpus)


def _read(batch: dict[str, Any], reader: Reader) -> Iterator[Batch]:
    for text in batch["chunk"]:
        yield from reader.read(Chunk.model_validate_json(text))
