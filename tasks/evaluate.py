"""In: a trained model. Out: its scores and the champion's scores on the same held-out test rows.

No other step scores models on the test split. Test rows that the champion was trained on, for example after
data.test_share was raised, are left out. Fails with SettingError when the champion takes other inputs than the dataset
has or no test row is left to compare on, with TrainingError when a prediction of the candidate is not finite, and with
DataError when one of a registered model is not.
"""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.checks.model_checks import check_same_transform
from tasks.comparison import PREDICTIONS, comparison_now, find_evaluation, write_comparison
from tasks.own_columns import Inputs, own_inputs
from tasks.preflight import check_shape
from tasks.registry.aliases import CLASSES_TAG, DATASET_TAG, load_version, version_tags
from tasks.registry.safe_loading import TRANSFORM_TAG
from tasks.registry.training_rows import found_again, inherited_rows, training_rows_of
from tasks.step import step
from tasks.trackers.mlflow_run import connect_patiently
from tasks.trackers.provenance import PARENT_TAG
from training.data.dataset import Columns, open_columns
from training.data.row_digests import Digests, contents, known_rows, row_digests, rows_among
from training.data.tables.other_columns import content_columns, own_columns_in_words
from training.errors import DataError, SettingError
from training.plan import RunPlan
from training.problems import problem_at, problem_named
from training.problems.base import Predict, Predictions, Problem, Weights
from training.problems.gate_metrics import metric_numbers
from training.problems.row_metrics import ENDING
from training.recipe import reload_once
from training.recipe_metrics import RecipeMetrics
from training.records import (
    ColumnKind,
    DatasetVersion,
    Evaluation,
    GateMetric,
    Score,
    Split,
    TableSchema,
    TrainedModel,
)
from training.storage.files import atomic_file, atomic_folder, digest_file
from training.storage.paths import Home
from training.storage.record_files import set_aside
from training.trainers.base import inspection_of
from training.trainers.row_weights import scaled

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.evaluate")

_NO_ROWS: Digests = np.empty(0, np.uint64)
_LATENCY_TRIES = 20
_ROW_LISTS = ("mistakes", "largest_errors")  # fields of an evaluation whose entries have a row number


class ComparedVersion(NamedTuple):
    """A registered version that the candidate is compared with: the champion, or the anchor of policy "not_worse".

    `predict` returns predictions; those of a classification have one column for each of `classes`. `table` describes
    the columns of a table that the version takes, and `tokenizer` is the JSON of a model's tokenizer of text.
    `threshold` is that of a classifier of two classes, of the second of `classes`.
    `trained_on` holds the digests of the version's training rows; None when they are unknown. Of a table with other
    columns than the dataset, it also has those of the rows' content in the columns `found_by`, which both have.
    `all_found` is false if such rows can't be found again.
    """

    version: str
    predict: Predict
    classes: tuple[str, ...]
    trained_on: Digests | None
    table: TableSchema | None = None
    tokenizer: str = ""
    threshold: float | None = None
    found_by: Mapping[str, ColumnKind] = {}
    all_found: bool = True


@step("evaluate", retries=3, pause_s=5)
def evaluate(plan: RunPlan, version: DatasetVersion, trained: TrainedModel) -> Evaluation:
    """Score candidate and champion, or reuse the saved scores of an identical comparison."""
    client = connect_patiently(plan)
    now = comparison_now(client, plan, version, trained)
    folder = now.folder(plan)
    if (evaluation := find_evaluation(folder)) is not None:
        return evaluation
    if folder.exists():
        set_aside(folder, "its files are damaged, so the models are scored again")
    with atomic_folder(folder) as aside:
        champion, anchor = (_loaded(client, plan, version, number) for number in (now.champion, now.anchor))
        made = compare(plan, version, trained, champion, anchor, aside, now.metric)
        child = plan.initial is not None and plan.initial.digest == now.champion_weights
        made = made.model_copy(update={"initial": plan.initial, "champion_is_parent": child})
        write_comparison(folder, aside, now, made)
    return made.model_copy(update={"predictions": str(folder / PREDICTIONS)})


def compare(
    plan: RunPlan,
    version: DatasetVersion,
    trained: TrainedModel,
    champion: ComparedVersion | None,
    anchor: ComparedVersion | None,
    folder: Path,
    metric: GateMetric | None = None,
) -> Evaluation:
    """Score the models on the test rows that none of them was trained on, and save the predictions in `folder`.

    `metric` is that of the gate. Raises :class:`SettingError` when no such row is left.
    """
    test = open_columns(version, "test")
    thresholds = {
        "candidate": trained.threshold,
        "champion": _threshold(champion, version),
        "anchor": _threshold(anchor, version),
    }
    problem = problem_at(version.problem, thresholds["candidate"], thresholds["champion"])
    others = [model for model in (champion, anchor) if model is not None]
    trained_on = _training_rows(plan, others)
    found_by = {f"{plan.model} version {model.version}": model.found_by for model in others}
    compared = _rows_to_compare(plan, version, trained_on, found_by)
    own = [own_columns_in_words(f"version {model.version}", model.table, version) for model in others]

    def _inputs_of(model: ComparedVersion) -> Inputs:
        return own_inputs(model.table, model.tokenizer, version, rows, compared)

    rows = _weighed(plan, test if compared.all() else test.selected(compared, folder))
    recipe = reload_once(plan.recipe, plan.paths.recipe)
    metrics = RecipeMetrics(recipe.name, recipe.metrics, version, "cpu")
    predict = inspection_of(plan.settings.trainer).predictor(recipe, version, trained)
    measured = _measured(predict, rows.inputs)
    candidate_predictions = problem.aligned(measured.predictions, version.classes, version)
    candidate_score = _score(plan, problem, version, rows, measured, candidate_predictions, metrics)
    champion_predictions, champion_score, anchor_predictions = None, None, None
    if champion is not None:
        measured = _measured(champion.predict, _inputs_of(champion))
        champion_predictions = _aligned(plan, champion, measured.predictions, version)
        of_champion = problem_at(version.problem, thresholds["champion"])
        champion_score = _score(plan, of_champion, version, rows, measured, champion_predictions, metrics)
    if anchor is not None:
        answers = anchor.predict(_inputs_of(anchor))
        anchor_predictions = _aligned(plan, anchor, answers, version)
    train_targets = partial(_targets, version, "train")
    baseline = problem.baseline(version, train_targets, len(rows), metric)
    models = {
        "candidate": candidate_predictions,
        "champion": champion_predictions,
        "anchor": anchor_predictions,
        "baseline": baseline.predictions if baseline else None,
    }
    predictions = folder / PREDICTIONS
    confidence = plan.settings.gate.confidence
    numbers, values = metric_numbers(
        metric, rows.targets, models, version, confidence, thresholds, rows.weights
    )
    _keep_predictions(predictions, version, test, compared, models, thresholds, rows.weights, numbers)
    against = f", champion {problem.figure(champion_score)}" if champion_score else ""
    log.info("%s%s", problem.headline(candidate_score), against)
    findings = problem.findings(rows.targets, candidate_predictions, champion_predictions, version)
    return Evaluation(
        rows=len(rows),
        candidate=candidate_score,
        champion=champion_score,
        champion_version=champion.version if champion else None,
        **_findings(findings, np.flatnonzero(compared)),
        predictions=str(predictions),
        predictions_digest=digest_file(predictions),
        anchor_version=anchor.version if anchor else None,
        baseline=baseline.words if baseline else "",
        metric=metric,
        metric_values=values,
        left_out=len(test) - len(rows),
        training_rows_known=all(digests is not None for digests in trained_on.values())
        and all(model.all_found for model in others),
        own_columns="; ".join(filter(None, own)),
    )


def _targets(version: DatasetVersion, split: Split) -> npt.NDArray[Any]:
    return open_columns(version, split).targets


def _findings(fields: dict[str, Any], numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
    """`fields` with row numbers of the test split; compared row i is row `numbers[i]` of the split."""

    def numbered(record: Any) -> Any:
        return record.model_copy(update={"row": int(numbers[record.row])})

    rows = {name: tuple(map(numbered, fields[name])) for name in _ROW_LISTS if name in fields}
    return fields | rows


def _training_rows(plan: RunPlan, others: list[ComparedVersion]) -> dict[str, Digests | None]:
    """The training rows of each other model, and of the weights that the candidate started from, by their names."""
    digests = {f"{plan.model} version {model.version}": model.trained_on for model in others}
    if plan.initial is not None:
        digests[f"the initial weights of the candidate ({plan.initial.name})"] = inherited_rows(plan)
    return digests


def _rows_to_compare(
    plan: RunPlan,
    version: DatasetVersion,
    trained_on: dict[str, Digests | None],
    found_by: Mapping[str, Mapping[str, ColumnKind]],
) -> npt.NDArray[np.bool_]:
    """Mask of the test rows to compare on: without those that a model in `trained_on` alone was trained on.

    A test row whose content is among the candidate's own training rows, too, stays: where the source divides the rows
    of a table, by time for example, many different rows may have equal features. `found_by` has the columns by which
    rows are also found, for a model whose table has other columns. Raises :class:`SettingError` when no row is left.
    """
    compared = np.ones(version.rows("test"), bool)
    for name, known in trained_on.items():
        if known is None:
            log.warning("%s: the rows it was trained on are unknown; all test rows are compared", name)
            continue
        columns = found_by.get(name, {})
        seen = rows_among(version, "test", known, columns)
        if seen.any():
            own = known_rows(version, "train")
            if columns:
                own = np.union1d(own, contents(version, "train", columns))
            seen &= ~rows_among(version, "test", own, columns)
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


def _weighed(plan: RunPlan, rows: Columns) -> Columns:
    """The compared rows with weights of mean 1. Raises :class:`SettingError` if all their weights are 0."""
    if rows.weights is None:
        return rows
    if not rows.weights.any():
        raise SettingError(
            f"model {plan.model}: the weights of all {len(rows)} compared test rows are 0, so nothing can be compared. "
            "Give test rows a weight above 0, or register under another name with tracking.model."
        )
    return replace(rows, weights=scaled(rows.weights))


class Measured(NamedTuple):
    """A model's predictions for test rows, and the times it took."""

    predictions: Predictions
    latency_ms: float
    rows_per_s: float


def _measured(predict: Predict, inputs: Inputs) -> Measured:
    latency = latency_ms(predict, inputs)
    began = time.perf_counter()
    predictions = predict(inputs)
    return Measured(predictions, latency, len(inputs) / (time.perf_counter() - began))


def _score(
    plan: RunPlan,
    problem: Problem,
    version: DatasetVersion,
    test: Columns,
    measured: Measured,
    predictions: Predictions,
    metrics: RecipeMetrics,
) -> Score:
    """The score of `predictions`: those of `measured`, in the order of the dataset's classes."""
    score = problem.score(
        test.targets,
        predictions,
        version,
        plan.settings.gate.confidence,
        measured.latency_ms,
        measured.rows_per_s,
        test.weights,
    )
    return score.model_copy(update={"recipe_metrics": metrics.of_rows(predictions, test.targets)})


def _aligned(
    plan: RunPlan, champion: ComparedVersion, predictions: Predictions, version: DatasetVersion
) -> Predictions:
    """A registered model's predictions, in the dataset's order of classes.

    Raises :class:`DataError` when one is not finite.
    """
    if not np.isfinite(predictions).all():
        raise DataError(
            f"model {plan.model} version {champion.version} gives predictions that are not finite, so it is damaged. "
            "`evergreen rollback` points the alias to a sound version."
        )
    return problem_named(version.problem).aligned(predictions, champion.classes, version)


def _threshold(model: ComparedVersion | None, version: DatasetVersion) -> float | None:
    """The threshold of a registered model, in the dataset's order of classes; None without one."""
    if model is None or model.threshold is None or model.classes == version.classes:
        return None if model is None else model.threshold
    if model.classes == version.classes[::-1]:
        return 1 - model.threshold
    log.warning(
        "%s has a threshold between %s, which are not the classes of the dataset: its likelier class is compared",
        model.version,
        " and ".join(model.classes),
    )
    return None


def latency_ms(predict: Predict, inputs: Inputs) -> float:
    """Median latency in milliseconds of `predict` on a batch of one row."""
    row = np.array(inputs[:1])
    predict(row)  # warm-up: the first call includes set-up
    taken = []
    for _ in range(_LATENCY_TRIES):
        began = time.perf_counter()
        predict(row)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken) * 1000)


def _loaded(
    client: "MlflowClient", plan: RunPlan, version: DatasetVersion, number: str | None
) -> ComparedVersion | None:
    if number is None:
        return None
    tags = version_tags(client, plan.model, number)
    check_same_transform(plan.model, number, tags.get(TRANSFORM_TAG, ""), version.transform)
    check_shape(plan, version, number)
    model = load_version(Home(Path(plan.home)), plan.model, number)
    log.info("compared with: %s version %s", plan.model, number)
    # Of the same dataset version, both learned the same rows; a fine-tuned model also learned its ancestors' rows.
    trained_on: Digests | None = _NO_ROWS
    if tags.get(DATASET_TAG) != version.fingerprint or PARENT_TAG in tags:
        trained_on = training_rows_of(client, plan, number)
    trained_on, all_found = found_again(plan, version, model.table, tags.get(DATASET_TAG), trained_on)
    # The metadata were checked. Versions without these metadata have the names in a tag, unless they are too long.
    classes = model.classes or tuple(json.loads(tags.get(CLASSES_TAG, "[]"))) or version.classes
    return ComparedVersion(
        version=number,
        predict=model.predict,
        classes=classes,
        trained_on=trained_on,
        table=model.table,
        tokenizer=model.tokenizer,
        threshold=model.threshold,
        found_by=content_columns(model.table, version),
        all_found=all_found,
    )


def _keep_predictions(
    path: Path,
    version: DatasetVersion,
    test: Columns,
    compared: npt.NDArray[np.bool_],
    models: dict[str, Predictions | None],
    thresholds: dict[str, float | None],
    weights: Weights | None,
    numbers: dict[str, npt.NDArray[np.float64]],
) -> None:
    """Write one row per test row; a row that was left out has the prediction -1 where it is a class, else NaN.

    `weights` are those of the compared rows; the others get 0. `numbers` are those of the compared rows by the gate's
    metric, by model.
    """
    targets = test.targets[compared]
    digests = row_digests(version, "test")
    columns: dict[str, Any] = {"label": test.targets, "digest": digests, "compared": compared}
    for name, predictions in models.items():
        if predictions is not None:
            problem = problem_at(version.problem, thresholds.get(name))
            own = {ENDING: numbers[name]} if name in numbers else {}
            for ending, values in (problem.row_columns(targets, predictions) | own).items():
                missing = -1 if np.issubdtype(values.dtype, np.integer) else np.nan
                columns[name + ending] = np.full(len(test), missing, values.dtype)
                columns[name + ending][compared] = values
    if weights is not None:
        columns["weight"] = np.zeros(len(test))
        columns["weight"][compared] = weights
    with atomic_file(path) as aside:
        pq.write_table(pa.table(columns), aside)
