"""In: a trained model. Out: its scores and the champion's scores on the same held-out test rows.

No other step scores models on the test split. Test rows that the champion was trained on, for example after
data.test_share was raised, are left out. Fails with SettingError when the champion takes images of another shape or
no test row is left to compare on, and with DataError when a model returns probabilities that are not finite.
"""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.comparison import comparison_now, find_evaluation, write_comparison
from tasks.preflight import check_shape
from tasks.registry.aliases import CLASSES_TAG, DATASET_TAG, load_version, version_tags
from tasks.registry.training_rows import training_rows_of
from tasks.step import step
from tasks.trackers.mlflow_run import connect_patiently
from training.data.dataset import Columns, open_columns
from training.data.images.decoding import Pixels
from training.data.row_digests import Digests, row_digests, rows_among
from training.errors import DataError, SettingError
from training.plan import RunPlan
from training.problems.classification import paired, score, worst_mistakes
from training.recipe import reload
from training.records import DatasetVersion, Evaluation, Score, TrainedModel
from training.storage.files import atomic_file, atomic_folder
from training.storage.paths import Home
from training.storage.record_files import set_aside
from training.trainers.torch.serving import Probabilities, latency_ms, predictor, serving_module

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.evaluate")

Predict = Callable[[Pixels], Probabilities]

_NO_ROWS: Digests = np.empty(0, np.uint64)


class Champion(NamedTuple):
    """A registered version to compare the candidate with.

    `predict` returns probabilities with one column for each of `classes`. `trained_on` holds the digests of the
    version's training rows; None when they are unknown.
    """

    version: str
    predict: Predict
    classes: tuple[str, ...]
    trained_on: Digests | None


@step("evaluate", retries=3, pause_s=5)
def evaluate(plan: RunPlan, version: DatasetVersion, trained: TrainedModel) -> Evaluation:
    """Score candidate and champion, or reuse the saved scores of an identical comparison."""
    client = connect_patiently(plan)
    now = comparison_now(client, plan, trained)
    folder = now.folder(plan)
    if (found := find_evaluation(folder)) is not None:
        return found
    if folder.exists():
        set_aside(folder, "its records can't be read")
    with atomic_folder(folder) as aside:
        champion, anchor = (_loaded(client, plan, version, one) for one in (now.champion, now.anchor))
        made = compare(plan, version, trained, champion, anchor, aside)
        write_comparison(folder, aside, now, made)
    return made.model_copy(update={"predictions": str(folder / "predictions.parquet")})


def compare(
    plan: RunPlan,
    version: DatasetVersion,
    trained: TrainedModel,
    champion: Champion | None,
    anchor: Champion | None,
    folder: Path,
) -> Evaluation:
    """Score the models on the test rows that none of them was trained on, and save the predictions in `folder`.

    Raises :class:`SettingError` when no such row is left.
    """
    test = open_columns(version, "test")
    others = [one for one in (champion, anchor) if one is not None]
    compared = _rows_to_compare(plan, version, others)
    rows = test if compared.all() else test.selected(compared)
    module = serving_module(reload(plan.recipe, plan.paths.recipe), version, trained)
    confidence = plan.settings.gate.confidence
    ours, candidate = _scored(rows, predictor(module), version.classes, version, confidence)
    theirs, other = None, None
    if champion is not None:
        theirs, other = _scored(rows, champion.predict, champion.classes, version, confidence)
    first = None if anchor is None else _align(anchor.predict(rows.images), anchor.classes, version.classes)
    pairs = paired(rows.labels, ours, theirs)
    models = {"candidate": ours, "champion": theirs, "anchor": first}
    _keep_predictions(folder / "predictions.parquet", test, compared, row_digests(version, "test"), models)
    log.info(
        "test accuracy %.4f (%.4f to %.4f at %g%% confidence)%s",
        candidate.accuracy,
        candidate.low,
        candidate.high,
        100 * confidence,
        f", champion {other.accuracy:.4f}" if other else "",
    )
    numbers = np.flatnonzero(compared)
    mistakes = worst_mistakes(rows.labels, ours, version.classes)
    return Evaluation(
        rows=len(rows),
        candidate=candidate,
        champion=other,
        champion_version=champion.version if champion else None,
        **pairs.model_dump(),
        mistakes=tuple(one.model_copy(update={"row": int(numbers[one.row])}) for one in mistakes),
        predictions=str(folder / "predictions.parquet"),
        anchor_version=anchor.version if anchor else None,
        left_out=len(test) - len(rows),
        training_rows_known=all(one.trained_on is not None for one in others),
    )


def _rows_to_compare(plan: RunPlan, version: DatasetVersion, others: list[Champion]) -> npt.NDArray[np.bool_]:
    """Mask of the test rows to compare on: those that no other model was trained on.

    The candidate was trained on none of them, as no image is in both splits. Raises :class:`SettingError` when no row
    is left.
    """
    compared = np.ones(version.rows("test"), bool)
    for other in others:
        name = f"{plan.model} version {other.version}"
        if other.trained_on is None:
            log.warning("%s: the rows it was trained on are unknown; all test rows are compared", name)
            continue
        seen = rows_among(version, "test", other.trained_on)
        if seen.any():
            log.warning(
                "%d of %d test rows were training rows of %s: left out of the comparison",
                seen.sum(),
                len(seen),
                name,
            )
        compared &= ~seen
    if not compared.any():
        raise SettingError(
            f"model {plan.model}: all {len(compared)} test rows were training rows of the models to compare with, so "
            "nothing can be compared. Add test rows, or register under another name with tracking.model."
        )
    return compared


def _scored(
    test: Columns, predict: Predict, names: tuple[str, ...], version: DatasetVersion, confidence: float
) -> tuple[Probabilities, Score]:
    """A model's probabilities for `test`, with columns in the order of the dataset's classes, and its score."""
    one = latency_ms(predict, test.images)
    began = time.perf_counter()
    found = predict(test.images)
    per_second = len(test) / (time.perf_counter() - began)
    aligned = _align(found, names, version.classes)
    return aligned, score(test.labels, aligned, version.classes, confidence, one, per_second)


def _loaded(
    client: "MlflowClient", plan: RunPlan, version: DatasetVersion, number: str | None
) -> Champion | None:
    if number is None:
        return None
    tags = version_tags(client, plan.model, number)
    classes = tuple(json.loads(tags.get(CLASSES_TAG, "[]"))) or version.classes
    check_shape(plan, version, number)
    model = load_version(Home(Path(plan.home)), plan.model, number)
    log.info("compared with: %s version %s", plan.model, number)
    predict = cast(Predict, model.predict)
    trained_on: Digests | None = _NO_ROWS  # for the same dataset version: no image is in both splits
    if tags.get(DATASET_TAG) != version.fingerprint:
        trained_on = training_rows_of(client, plan, number)
    return Champion(number, lambda images: _in_batches(predict, images), classes, trained_on)


def _in_batches(predict: Predict, images: Pixels) -> Probabilities:
    return np.concatenate(
        [predict(np.array(images[start : start + 512])) for start in range(0, len(images), 512)]
    )


def _align(theirs: Probabilities, names: tuple[str, ...], classes: tuple[str, ...]) -> Probabilities:
    """Reorder the columns to the order of `classes`; a class that the champion does not know gets probability 0.

    The probabilities of a row are rescaled to sum to 1. Raises :class:`DataError` when one is not finite.
    """
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
    # A row whose whole probability is on classes that the dataset no longer has gets the uniform distribution.
    shared: Probabilities = np.where(
        left > 1e-6, aligned / np.maximum(left, 1e-6), np.float32(1 / len(classes))
    )
    return shared.astype(np.float32)


def _keep_predictions(
    path: Path,
    test: Columns,
    compared: npt.NDArray[np.bool_],
    digests: Digests,
    models: dict[str, Probabilities | None],
) -> None:
    """Write one row per test row; a row that was left out has prediction -1 and probability NaN."""
    columns: dict[str, Any] = {"label": test.labels, "digest": digests, "compared": compared}
    places = np.flatnonzero(compared)
    for name, found in models.items():
        if found is not None:
            predicted, probability = np.full(len(test), -1), np.full(len(test), np.nan, np.float32)
            predicted[places] = found.argmax(1)
            probability[places] = found[np.arange(len(places)), test.labels[places]]
            columns |= {name: predicted, f"{name}_probability": probability}
    with atomic_file(path) as aside:
        pq.write_table(pa.table(columns), aside)
