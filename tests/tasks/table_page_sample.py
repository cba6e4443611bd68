"""Inputs of reports on tables from small real computations: a regression, and a classification with missing values."""

from dataclasses import replace
from functools import cache

import numpy as np
from page_sample import report
from sklearn.datasets import load_diabetes
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from tasks.gate import judge
from tasks.gate.look import Reference, take_look
from tasks.gate.reign import Reign
from tasks.problems.regression.gate import NumberOutcomes
from tasks.report_page.inputs import Predicted, ReportInputs
from tasks.run_words import run_words
from training.problems.regression import largest_errors, score
from training.records import DatasetVersion, EpochMetrics, Evaluation, TableColumn, TableSchema
from training.settings.overrides import describe
from training.settings.schema import GateSettings, Settings
from training.trainers.xgboost.settings import XGBoostSettings

ROUNDS = 40
Numbers = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@cache
def diabetes_run() -> tuple[tuple[EpochMetrics, ...], Numbers, dict[str, float]]:
    """Train two models of disease progression: rounds; test rows, targets, predictions of both; shares of columns."""
    data = load_diabetes(scaled=False)
    mixed = np.random.default_rng(0).permutation(len(data.target))
    rows, targets = data.data[mixed], data.target[mixed]
    train, validation, test = slice(0, 200), slice(200, 260), slice(260, None)
    trees = GradientBoostingRegressor(n_estimators=ROUNDS, max_depth=2, random_state=0)
    trees.fit(rows[train], targets[train])
    staged = [list(trees.staged_predict(rows[part])) for part in (train, validation)]
    errors = [
        [float(np.mean((predicted - targets[part]) ** 2)) for predicted in predictions]
        for part, predictions in zip((train, validation), staged, strict=True)
    ]
    history = tuple(
        EpochMetrics(
            epoch=number,
            step=number,
            train_loss=ours,
            train_score=ours**0.5,
            validation_loss=theirs,
            validation_score=theirs**0.5,
            learning_rate=0.1,
            images_per_s=81_000.4,
            rows=200,
            checksum=1,
        )
        for number, (ours, theirs) in enumerate(zip(*errors, strict=True), start=1)
    )
    line = LinearRegression().fit(rows[:40, :2], targets[:40])
    guesses = trees.predict(rows[test]).astype(np.float32), line.predict(rows[test][:, :2]).astype(np.float32)
    shares = dict(zip(data.feature_names, map(float, trees.feature_importances_), strict=True))
    return history, (rows[test], targets[test], *guesses), shares


def schema(name: str = "progression") -> TableSchema:
    """The columns of the diabetes table, with `sex` as a category of which two values are missing."""
    data = load_diabetes(scaled=False)
    columns = []
    for index, column in enumerate(data.feature_names):
        values = data.data[:, index]
        if column == "sex":
            counts = tuple(int((values == code).sum()) for code in (1, 2))
            columns.append(
                TableColumn(name=column, kind="category", categories=("1", "2"), counts=counts, missing=2)
            )
        else:
            facts = {"mean": values.mean(), "std": values.std(), "least": values.min(), "most": values.max()}
            columns.append(TableColumn(name=column, kind="number", **facts))
    return TableSchema(
        target=name,
        columns=tuple(columns),
        target_mean=float(data.target.mean()),
        target_std=float(data.target.std()),
    )


def table_version(problem: str, table: TableSchema, classes: tuple[str, ...] = ()) -> DatasetVersion:
    """A dataset version of rows of a table."""
    images = report().dataset
    counts = {split: images.label_counts[split][: len(classes)] for split in ("train", "test")}
    return images.model_copy(
        update={
            "name": "table",
            "problem": problem,
            "table": table,
            "classes": classes,
            "shape": (len(table.columns),),
            "mean": (),
            "std": (),
            "label_counts": counts,
            "source_origin": "rows.csv",
        }
    )


def regression_report(
    with_champion: bool = True, times: int = 1, target: str = "progression", floor: float = 0.2
) -> ReportInputs:
    """Inputs of a report on a regression by XGBoost; `times` repeats the test rows, so that there are many."""
    history, numbers, shares = diabetes_run()
    rows, targets, ours, theirs = (np.concatenate([array] * times) for array in numbers)
    table = schema(target)
    worst = largest_errors(targets, ours)
    compared = Evaluation(
        rows=len(rows),
        candidate=score(targets, ours, 0.95, 0.21, 310_000.0),
        champion=score(targets, theirs, 0.95, 0.11, 510_000.0) if with_champion else None,
        champion_version="6" if with_champion else None,
        largest_errors=worst,
        predictions="predictions.parquet",
    )
    settings = GateSettings(floor=floor)
    looks = ()
    if with_champion:
        digests = np.arange(len(rows), dtype=np.uint64)
        squared = [np.square(predicted.astype(float) - targets) for predicted in (ours, theirs)]
        outcomes = NumberOutcomes(digests, targets, *squared)
        looks = (
            take_look("better", "candidate", Reference("6", "champion"), outcomes, Reign(), settings)[0],
        )
    images = report()
    verdict = judge(compared, settings, looks)
    alias = "champion" if verdict.promote else "challenger"
    return replace(
        images,
        release=images.release.model_copy(update={"verdict": verdict, "alias": alias, "epochs": ROUNDS}),
        trained=images.trained.model_copy(
            update={"history": history, "selected_epoch": ROUNDS - 3, "steps": ROUNDS}
        ),
        evaluation=compared,
        dataset=table_version("regression", table),
        settings=describe(Settings(training=XGBoostSettings(rounds=ROUNDS))),
        changes=(),
        commands=(),
        example_pictures=(),
        words=run_words("table", "xgboost", "regression"),
        example_rows=tuple(tuple(f"{value:g}" for value in rows[error.row]) for error in worst),
        example_places={error.row: f"diabetes.csv row {error.row + 2}" for error in worst},
        predicted=Predicted(targets.astype(float), ours.astype(float)),
        importances=shares,
    )


def class_table_report(text: str = "Torgersen") -> ReportInputs:
    """Inputs of a report on a classification of rows of a table by torch; `text` is a value of each example."""
    images = report()
    columns = (
        TableColumn(name="island", kind="category", categories=("Biscoe", text), counts=(90, 40)),
        TableColumn(name="hatched", kind="date", least=19000.0, most=19010.25, missing=7),
        TableColumn(name="banded", kind="boolean", mean=0.25, most=1.0),
    )
    table = TableSchema(target="species", columns=columns)
    version = table_version("classification", table, images.dataset.classes)
    return replace(
        images,
        dataset=version,
        example_pictures=(),
        words=run_words("table", "torch", "classification"),
        example_rows=tuple((text, "2022-01-08", "–") for _ in images.evaluation.mistakes),
        example_places={
            mistake.row: f"penguins.csv row {mistake.row}" for mistake in images.evaluation.mistakes
        },
    )
