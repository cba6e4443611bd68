"""In: a registered model, and images, a table or texts. Out: the prediction for each, in input order, as Parquet or
CSV.

Fails with SettingError for an unknown model or alias and for an input or output path that can't be used, with
ResourceError when the home was moved, and with DataError that names the images or rows which can't be read. A failure
leaves the output path unchanged.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

from pydantic import Field

from tasks.inference.changed_rows import function_of
from tasks.inference.inputs import Batch, Reader, Unit
from tasks.inference.new_categories import NewCategories
from tasks.inference.prediction_files import PredictionWriter, check_places, is_csv, is_one_file, staged
from tasks.inference.scoring import LoadedVersion, in_process, open_served, over_ray
from tasks.registry.aliases import CHAMPION, version_tags
from tasks.registry.lookup import find_alias
from tasks.step import step
from tasks.trackers.embedded_store import check_not_moved
from tasks.trackers.mlflow_run import connect
from training.errors import DataError, SettingError
from training.ray_cluster.cluster import ray_cluster
from training.records import Record
from training.settings.schema import RaySettings, Settings
from training.storage.given_paths import named, resolved
from training.storage.paths import Home

log = logging.getLogger("evergreen.predict")

_LOG_EVERY_S = 10.0
_SHOWN = 5


class PredictionSummary(Record):
    """Summary of a batch prediction; the predicted rows themselves are at `output`."""

    model: str
    version: str
    output: str
    rows: int
    unit: Unit = Field("images", description="what the rows are: images, or rows of a table")
    skipped: int = Field(0, description="images or rows left out since they could not be read")
    counts: dict[str, int] = Field({}, description="rows of each predicted class; empty for a regression")
    value: str = Field(
        "prediction", description="what mean, least and most are of; another word for a language model"
    )
    mean: float | None = Field(
        None, description="mean prediction of a regression, or mean loss per token of a language model"
    )
    least: float | None = Field(None, description="smallest prediction, or loss per token of a row")
    most: float | None = Field(None, description="largest prediction, or loss per token of a row")
    unknown_categories: dict[str, int] = Field(
        {}, description="by column of a table: rows with a category that the model did not learn"
    )
    seconds: float
    images_per_s: float = Field(description="images or rows a second")


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
    """Score all images or rows at `source` with the version that `alias` names."""
    began = time.perf_counter()
    for name, given in (("input", source), ("output", output)):
        if not given:
            raise SettingError(f"{name}: the path is empty")
    source_path, target = named(source, "input"), resolved(output, "output")
    check_places(resolved(source, "input"), target, overwrite)
    client = connect(tracking_uri, Home(Path(home)))
    if tracking_uri is None:
        check_not_moved(Home(Path(home)))
    number = find_alias(client, model, alias)
    function = function_of(
        Home(Path(home)), version_tags(client, model, number), f"model {model} version {number}"
    )
    served = open_served(model, number, tracking_uri, Home(Path(home)), function)
    reader = served.reader
    chunks = reader.find(source_path)
    rows = sum(chunk.rows for chunk in chunks)
    log.info("%s version %s (%s) on %d %s from %s", model, number, alias, rows, reader.unit, source_path)
    on_ray = choose_ray(reader, rows, with_ray, ray)
    new = NewCategories()
    with ray_cluster(Settings(ray=ray)) if on_ray else nullcontext(), staged(target, overwrite) as aside:
        batches = over_ray(chunks, served) if on_ray else in_process(chunks, served)
        writer = PredictionWriter(
            aside, is_one_file(target), served.outputs, model, number, as_csv=is_csv(target)
        )
        skipped = write_good(shown_progress(batches, rows, reader.unit), writer, skip_bad, new, reader.unit)
    new.warn()
    return _summary(served, target, writer, skipped, new, time.perf_counter() - began)


def choose_ray(reader: Reader, rows: int, wanted: bool | None, ray: RaySettings) -> bool:
    """Whether to score on Ray: as `wanted` says, else when there is a cluster or starting Ray is worth its time.

    Logs the reason when Ray is not worth its start-up time.
    """
    if wanted is not None:
        return wanted
    if ray.address or rows >= reader.ray_from_rows:
        return True
    log.info(
        "%d %s are scored in this process: starting Ray for them would take longer (about 10 s)",
        rows,
        reader.unit,
    )
    return False


def write_good(
    batches: Iterable[Batch], writer: PredictionWriter, skip_bad: bool, new: NewCategories, unit: Unit
) -> int:
    """Write the rows that could be read; returns the number of those that could not.

    Raises :class:`DataError` at the first batch with an unreadable row, unless `skip_bad` leaves such rows out,
    and when no row at all is readable.
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
        writer.write(batch["where"][good], batch["predictions"][good])
        new.add(batch)
    writer.close()
    if not writer.rows:
        raise DataError(
            f"none of the {skipped} {unit} can be used, so there is no result. Repair the inputs that the warnings "
            "above name."
        )
    return skipped


def shown_progress(batches: Iterable[Batch], total: int, unit: Unit) -> Iterator[Batch]:
    """Yield the same batches, and log the progress every 10 s."""
    began = logged_at = time.perf_counter()
    done = 0
    for batch in batches:
        yield batch
        done += len(batch["where"])
        now = time.perf_counter()
        if now - logged_at > _LOG_EVERY_S:
            logged_at = now
            log.info(
                "%d of %d %s (%.0f%%), %.0f %s/s",
                done,
                total,
                unit,
                100 * done / total,
                done / (now - began),
                unit,
            )


def _summary(
    served: LoadedVersion,
    output: Path,
    writer: PredictionWriter,
    skipped: int,
    new: NewCategories,
    seconds: float,
) -> PredictionSummary:
    rows, unit = writer.rows, served.reader.unit
    log.info("%d predictions in %s (%.1f s, %.0f %s/s)", rows, output, seconds, rows / seconds, unit)
    return PredictionSummary(
        model=served.model,
        version=served.version,
        output=str(output),
        rows=rows,
        unit=unit,
        skipped=skipped,
        unknown_categories=dict(new.rows),
        seconds=seconds,
        images_per_s=rows / seconds,
        **writer.totals.summary(),
    )
