"""In: a trained model. Out: its scores and the champion's on the same held-back test rows.

The test split is touched here and nowhere else. Fails with SettingError when the champion can't take these images.
"""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.comparison import COMPARISON, EVALUATION, comparison_now
from tasks.preflight import check_shape
from tasks.registry import CLASSES_TAG, load_version, version_tags
from tasks.step import step
from tasks.tracking import connect_patiently
from training.dataset import Columns, open_columns
from training.errors import DataError
from training.files import atomic_file, atomic_folder
from training.images import Pixels
from training.paths import Home
from training.plan import RunPlan
from training.recipe import reload
from training.records import DatasetVersion, Evaluation, Score, TrainedModel
from training.scoring import paired, score, worst_mistakes
from training.serving import Probabilities, latency_ms, predictor, serving_module

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.evaluate")

Predict = Callable[[Pixels], Probabilities]


class Champion(NamedTuple):
    """The version now in service, and how to ask it."""

    version: str
    predict: Predict
    classes: tuple[str, ...]


@step("evaluate", retries=3, pause_s=5)
def evaluate(plan: RunPlan, version: DatasetVersion, trained: TrainedModel) -> Evaluation:
    """Score candidate and champion, or find that very comparison made."""
    client = connect_patiently(plan)
    now = comparison_now(client, plan, trained)
    folder = now.folder(plan)
    if not (folder / EVALUATION).is_file():
        with atomic_folder(folder) as aside:
            made = compare(plan, version, trained, _champion(client, plan, version, now.champion), aside)
            (aside / COMPARISON).write_text(now.model_dump_json(indent=1))
            (aside / EVALUATION).write_text(made.model_dump_json(indent=1))
    found = json.loads((folder / EVALUATION).read_text())
    return Evaluation.model_validate({**found, "predictions": str(folder / "predictions.parquet")})


def compare(
    plan: RunPlan, version: DatasetVersion, trained: TrainedModel, champion: Champion | None, folder: Path
) -> Evaluation:
    """Score both models on all test rows and keep the predictions in `folder`."""
    test = open_columns(version, "test")
    module = serving_module(reload(plan.recipe, plan.paths.recipe), version, trained)
    confidence = plan.settings.gate.confidence
    ours, candidate = _scored(test, predictor(module), version.classes, version, confidence)
    theirs, other = None, None
    if champion is not None:
        theirs, other = _scored(test, champion.predict, champion.classes, version, confidence)
    pairs = paired(test.labels, ours, theirs)
    _keep_predictions(folder / "predictions.parquet", test, ours, theirs)
    log.info(
        "test accuracy %.4f (%.4f to %.4f at %g%% confidence)%s",
        candidate.accuracy,
        candidate.low,
        candidate.high,
        100 * confidence,
        f", champion {other.accuracy:.4f}" if other else "",
    )
    return Evaluation(
        rows=len(test),
        candidate=candidate,
        champion=other,
        champion_version=champion.version if champion else None,
        **pairs.model_dump(),
        mistakes=worst_mistakes(test.labels, ours, version.classes),
        predictions=str(folder / "predictions.parquet"),
    )


def _scored(
    test: Columns, predict: Predict, names: tuple[str, ...], version: DatasetVersion, confidence: float
) -> tuple[Probabilities, Score]:
    """A model's probabilities for all test rows, in the order of the dataset's classes, and what they are worth."""
    one = latency_ms(predict, test.images)
    began = time.perf_counter()
    found = predict(test.images)
    per_second = len(test) / (time.perf_counter() - began)
    aligned = _align(found, names, version.classes)
    return aligned, score(test.labels, aligned, version.classes, confidence, one, per_second)


def _champion(
    client: "MlflowClient", plan: RunPlan, version: DatasetVersion, number: str | None
) -> Champion | None:
    if number is None:
        return None
    tags = version_tags(client, plan.model, number)
    classes = tuple(json.loads(tags.get(CLASSES_TAG, "[]"))) or version.classes
    check_shape(plan, version, number)
    model = load_version(Home(Path(plan.home)), plan.model, number)
    log.info("champion: %s version %s", plan.model, number)
    predict = cast(Predict, model.predict)
    return Champion(number, lambda images: _in_batches(predict, images), classes)


def _in_batches(predict: Predict, images: Pixels) -> Probabilities:
    return np.concatenate(
        [predict(np.array(images[start : start + 512])) for start in range(0, len(images), 512)]
    )


def _align(theirs: Probabilities, names: tuple[str, ...], classes: tuple[str, ...]) -> Probabilities:
    """Columns in the order of `classes`; a class that the champion never learned gets probability 0."""
    if not np.isfinite(theirs).all():
        raise DataError(
            "a model gives probabilities that are not finite: the candidate diverged, or the champion is damaged, in "
            "which case `evergreen rollback` points the alias to a sound version."
        )
    if names == classes:
        return theirs
    log.warning(
        "the champion knows other classes: %s; it is compared on the rows as they are", ", ".join(names)
    )
    aligned = np.zeros((len(theirs), len(classes)), np.float32)
    for column, name in enumerate(classes):
        if name in names:
            aligned[:, column] = theirs[:, names.index(name)]
    left = aligned.sum(axis=1, keepdims=True)
    # A row whose whole probability went to classes that are gone counts as a guess.
    shared: Probabilities = np.where(
        left > 1e-6, aligned / np.maximum(left, 1e-6), np.float32(1 / len(classes))
    )
    return shared.astype(np.float32)


def _keep_predictions(path: Path, test: Columns, ours: Probabilities, theirs: Probabilities | None) -> None:
    rows = np.arange(len(test))
    columns = {
        "label": test.labels,
        "candidate": ours.argmax(1),
        "candidate_probability": ours[rows, test.labels],
    }
    if theirs is not None:
        columns |= {"champion": theirs.argmax(1), "champion_probability": theirs[rows, test.labels]}
    with atomic_file(path) as aside:
        pq.write_table(pa.table(columns), aside)
