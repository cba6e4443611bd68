"""In: all records of a finished run. Out: the report page, and the report in MLflow and in the Prefect UI.

A failure of this step leaves the registered version unchanged; the next run of the same command creates the report.
"""

import base64
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from prefect.artifacts import create_image_artifact, create_markdown_artifact

from tasks.data_check import CHANGES_FILE
from tasks.flow_runs import artifact_key
from tasks.registry.unjudged import is_judged_elsewhere
from tasks.report_page.artifact import markdown, short_markdown
from tasks.report_page.examples import pictures_of, places_of, predicted_numbers, texts_of
from tasks.report_page.figures import prediction_grid
from tasks.report_page.inputs import ReportInputs
from tasks.report_page.links import where_to_look
from tasks.report_page.page import render
from tasks.report_page.sections import figures
from tasks.run_words import words_of
from tasks.step import step
from tasks.terminal.next_commands import next_commands
from tasks.trackers.mlflow_run import DATA_TAG, LONGEST_REASON, close_run, connect_patiently
from training.data.dataset import open_columns
from training.errors import classify
from training.http_errors import status_of
from training.plan import RunPlan
from training.problems import problem_named
from training.recipe import reload_once
from training.records import DatasetVersion, Evaluation, Release, TrainedModel
from training.redaction import redact
from training.settings.overrides import describe
from training.storage.files import write_text
from training.storage.paths import Home
from training.trainers.base import inspection_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch import nn

log = logging.getLogger("evergreen.report")

_PICTURES = 24
_GENERATED = 8  # images of each class


@step("report", retries=3, pause_s=5)
def report(
    plan: RunPlan, version: DatasetVersion, trained: TrainedModel, evaluation: Evaluation, release: Release
) -> None:
    """Write the page, upload it and its pictures to MLflow and Prefect, and close the MLflow run."""
    inputs = gather(plan, version, trained, evaluation, release)
    write_text(plan.paths.report, render(inputs))
    plan.paths.figures.mkdir(exist_ok=True)
    pictures = figures(inputs, plan.paths.figures)
    if version.has_images and _predicts_classes(evaluation):
        pictures.append(draw_predictions(version, evaluation, plan.paths.figures))
    client = connect_patiently(plan)
    client.log_artifact(release.mlflow_run_id, str(plan.paths.report))
    for picture in pictures:
        client.log_artifact(release.mlflow_run_id, str(picture), "figures")
    if release.data is not None:
        client.set_tag(release.mlflow_run_id, DATA_TAG, redact(release.data.summary)[:LONGEST_REASON])
        client.log_dict(release.mlflow_run_id, release.data.model_dump(mode="json"), CHANGES_FILE)
    note_efficiency(client, plan, trained, release, inputs.words.row)
    close_run(client, release.mlflow_run_id, "FINISHED")
    show_in_prefect(plan, inputs, pictures, client.get_run(release.mlflow_run_id).info.experiment_id)


def show_in_prefect(
    plan: RunPlan, inputs: ReportInputs, pictures: Sequence[Path], experiment_id: str
) -> None:
    """Create the report and its pictures as artifacts of this flow run; their keys begin with the recipe's name.

    The retraining is done, so an artifact that Prefect's server refuses is named in a warning. Of a report that is too
    large, the verdict and the links are published.
    """
    release, recipe = inputs.release, plan.recipe.name
    links, command = where_to_look(release, experiment_id, plan.settings.tracking.uri, Path(plan.home))
    report_page = partial(
        create_markdown_artifact,
        key=artifact_key(recipe, "report"),
        description=f"{release.model} version {release.version}, run {release.run_key[:16]}",
    )
    refusal = _refusal(lambda: report_page(markdown(inputs, links, command)), "the report", plan.paths.report)
    if _is_too_large(refusal):
        short = short_markdown(inputs, links, command)
        refusal = _refusal(lambda: report_page(short), "the verdict", plan.paths.report)
    for picture in pictures:
        if refusal is not None and not _is_too_large(refusal):
            return  # don't wait again for an unreachable server
        image = partial(
            create_image_artifact,
            _data_uri(picture),
            key=artifact_key(recipe, picture.stem),
            description=picture.stem.replace("_", " "),
        )
        refusal = _refusal(image, f"the picture {picture.name}", picture)


def _refusal(create: Callable[[], object], what: str, file: Path) -> Exception | None:
    """Publish an artifact; if the server refuses or does not answer, warns and returns the error, else None.

    Raises any other error.
    """
    try:
        create()
    except Exception as error:
        known = classify(error)
        if known is None and not status_of(error):
            raise
        log.warning("Prefect does not take %s (%s); it is in %s", what, known or redact(str(error)), file)
        return error
    return None


def _is_too_large(error: Exception | None) -> bool:
    return error is not None and status_of(error) == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def draw_predictions(version: DatasetVersion, evaluation: Evaluation, folder: Path) -> Path:
    """Draw the first compared test rows, each with the class that the candidate predicts."""
    table = pq.read_table(evaluation.predictions, columns=["label", "candidate", "compared"])
    rows = np.flatnonzero(table["compared"].to_numpy())[:_PICTURES]
    table = table.take(rows)
    names = {
        name: [version.classes[number] for number in table[name].to_pylist()]
        for name in ("label", "candidate")
    }
    images = open_columns(version, "test").inputs[rows]
    return prediction_grid(list(images), names["label"], names["candidate"], folder / "predictions.png")


def _predicts_classes(evaluation: Evaluation) -> bool:
    """Whether the evaluation has the predicted class of each row, and not a number."""
    kind = pq.read_schema(evaluation.predictions).field("candidate").type
    return bool(pa.types.is_integer(kind))


def note_efficiency(
    client: "MlflowClient", plan: RunPlan, trained: TrainedModel, release: Release, row: str
) -> None:
    """Tag the version with its cost: useful share of time, speed, worker-hours, and worker-hours lost to failures.

    `row` is the noun in the name of the speed. A version that another home made before keeps that home's tags. The
    MLflow run gets a tag with the seconds of each part of its wall time.
    """
    parts = release.goodput.parts
    tags = {
        "goodput": f"{release.goodput.useful_share:.3f}",
        "seconds": f"{release.goodput.total_s:.1f}",
        f"{row}s_per_s": f"{trained.history[-1].images_per_s:.0f}",
        "worker_hours": f"{trained.world_size * trained.seconds / 3600:.4f}",
        "lost_worker_hours": f"{trained.world_size * parts.get('lost to failures', 0.0) / 3600:.4f}",
    }
    if is_judged_elsewhere(client, Home(Path(plan.home)), release.model, release.version):
        tags = {}
    for name, text in tags.items():
        client.set_model_version_tag(release.model, release.version, f"evergreen.{name}", text)
    for name, seconds in parts.items():
        client.set_tag(
            release.mlflow_run_id, f"evergreen.goodput.{name.replace(' ', '_')}_s", f"{seconds:.2f}"
        )


def gather(
    plan: RunPlan, version: DatasetVersion, trained: TrainedModel, evaluation: Evaluation, release: Release
) -> ReportInputs:
    """Collect everything that the page shows."""
    from training.trainers.network.serving import trained_module

    def module() -> "nn.Module":
        return trained_module(reload_once(plan.recipe, plan.paths.recipe), version, trained)

    examples = [example.row for example in evaluation.examples]
    return ReportInputs(
        release=release,
        trained=trained,
        evaluation=evaluation,
        dataset=version,
        settings=describe(plan.settings),
        ingredients=plan.ingredients,
        changes=plan.changes,
        example_pictures=pictures_of(version, examples),
        commands=next_commands(release),
        created=datetime.now(UTC),
        words=words_of(plan),
        example_rows=texts_of(version, examples),
        example_places=places_of(version, examples),
        predicted=predicted_numbers(evaluation),
        importances=inspection_of(plan.settings.trainer).importances(Path(trained.weights)),
        generated=problem_named(version.problem).generated_images(module, version, _GENERATED),
    )


def _data_uri(picture: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
