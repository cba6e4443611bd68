"""In: a registered model and images. Out: class and probabilities of each image, as Parquet, in order of the paths.

Fails with SettingError for an unknown model or alias and for an input or output path that can't be used, with
ResourceError when the home was moved, and with DataError that names the images which can't be read. A failure leaves
the output path unchanged.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.inference.prediction_files import PredictionWriter, check_places, is_one_file, staged
from tasks.inference.scoring import Served, in_process, open_served, over_ray
from tasks.inference.unlabelled_images import Batch, find_chunks
from tasks.registry.aliases import CHAMPION
from tasks.registry.lookup import find_alias
from tasks.step import step
from tasks.trackers.embedded_store import check_not_moved
from tasks.trackers.mlflow_run import connect
from training.errors import DataError
from training.ray_cluster.cluster import ray_cluster
from training.records import Record
from training.settings.schema import RaySettings, Settings
from training.storage.paths import Home

log = logging.getLogger("evergreen.predict")

RAY_FROM_ROWS = 2000
_LOG_EVERY_S = 10.0
_SHOWN = 5


class PredictionSummary(Record):
    """Summary of a batch prediction; the predicted rows themselves are at `output`."""

    model: str
    version: str
    output: str
    rows: int
    skipped: int = Field(0, description="images left out since they could not be read")
    counts: dict[str, int] = Field(description="rows of each predicted class")
    seconds: float
    images_per_s: float


@step("predict", retries=2, pause_s=2)
def predict(
    home: str,
    model: str,
    source: str,
    output: str,
    alias: str = CHAMPION,
    skip_bad: bool = False,
    overwrite: bool = False,
    with_ray: bool | None = None,
    tracking_uri: str | None = None,
    ray: RaySettings = RaySettings(),  # noqa: B008 - frozen
) -> PredictionSummary:
    """Score all images at `source` with the version that `alias` names."""
    began = time.perf_counter()
    place, target = (Path(given).expanduser().resolve() for given in (source, output))
    check_places(place, target, overwrite)
    client = connect(tracking_uri, Home(Path(home)))
    if tracking_uri is None:
        check_not_moved(Home(Path(home)))
    number = find_alias(client, model, alias)
    chunks = find_chunks(place)
    rows = sum(chunk.rows for chunk in chunks)
    served = open_served(model, number, tracking_uri, Home(Path(home)))
    log.info("%s version %s (%s) on %d images from %s", model, number, alias, rows, place)
    on_ray = choose_ray(rows, with_ray, ray)
    with ray_cluster(Settings(ray=ray)) if on_ray else nullcontext(), staged(target, overwrite) as aside:
        batches = over_ray(chunks, served) if on_ray else in_process(chunks, served)
        writer = PredictionWriter(aside, is_one_file(target), served.classes, model, number)
        skipped = write_good(shown_progress(batches, rows), writer, skip_bad)
    return _summary(served, target, writer, skipped, time.perf_counter() - began)


def choose_ray(rows: int, wanted: bool | None, ray: RaySettings) -> bool:
    """Whether to score on Ray: as `wanted` says, else when there is a cluster or starting Ray is worth its time.

    Logs the reason when Ray is not worth its start-up time.
    """
    if wanted is not None:
        return wanted
    if ray.address or rows >= RAY_FROM_ROWS:
        return True
    log.info(
        "%d images are scored in this process: starting Ray for them would take longer (about 10 s)", rows
    )
    return False


def write_good(batches: Iterable[Batch], writer: PredictionWriter, skip_bad: bool) -> int:
    """Write the rows of images that could be read; returns the number of images that could not.

    Raises :class:`DataError` at the first batch with an unreadable image, unless `skip_bad` leaves such images out,
    and when no image at all is readable.
    """
    skipped = 0
    for batch in batches:
        good = batch["error"] == ""
        reasons = [str(reason) for reason in batch["error"][~good]]
        if reasons and not skip_bad:
            raise DataError(
                "can't be used:\n  "
                + "\n  ".join(reasons[:_SHOWN])
                + "\nThere may be more. Repair or remove them, or leave them out of the result with --skip-bad "
                "(skip_bad in Python)."
            )
        for reason in reasons:
            log.warning("left out: %s", reason)
        skipped += len(reasons)
        writer.write(batch["where"][good], batch["probabilities"][good])
    writer.close()
    if not writer.counts.sum():
        raise DataError(f"none of the {skipped} images can be used, so there is no result.")
    return skipped


def shown_progress(batches: Iterable[Batch], total: int) -> Iterator[Batch]:
    """Yield the same batches, and log the progress every 10 s."""
    began = said = time.perf_counter()
    done = 0
    for batch in batches:
        yield batch
        done += len(batch["where"])
        now = time.perf_counter()
        if now - said > _LOG_EVERY_S:
            said = now
            log.info(
                "%d of %d images (%.0f%%), %.0f images/s",
                done,
                total,
                100 * done / total,
                done / (now - began),
            )


def _summary(
    served: Served, output: Path, writer: PredictionWriter, skipped: int, seconds: float
) -> PredictionSummary:
    rows = int(np.sum(writer.counts))
    log.info("%d predictions in %s (%.1f s, %.0f images/s)", rows, output, seconds, rows / seconds)
    return PredictionSummary(
        model=served.model,
        version=served.version,
        output=str(output),
        rows=rows,
        skipped=skipped,
        counts=dict(zip(served.classes, map(int, writer.counts), strict=True)),
        seconds=seconds,
        images_per_s=rows / seconds,
    )
