"""Weights of rows in trainings: a weight of 2 counts as the same row twice."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import torch
from boosted_tables import boosted_job
from small_runs import job_for, prepared
from small_tables import alone, columns_of, described, on_table, plain_steps, values

from training.data.dataset import Columns, open_columns
from training.data.sources.table import Table
from training.errors import SettingError
from training.records import DatasetVersion, TrainedModel
from training.settings.overrides import parse_assignments, resolve
from training.settings.schema import DataSettings, Settings
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.base import inspection_of
from training.trainers.network.feeds import Batch
from training.trainers.row_weights import check_weights, class_weights, scaled, weighted
from training.trainers.torch.replica import Replica

INPUTS = values()
PRICES = 1000 + 300 * np.random.default_rng(1).normal(size=len(INPUTS)) + 50 * INPUTS[:, 0]
LABELS = np.random.default_rng(2).integers(0, 2, len(INPUTS))
TIMES = np.random.default_rng(3).integers(0, 4, len(INPUTS))  # how often each row counts
CASES = [(described(INPUTS, PRICES), PRICES), (described(INPUTS), LABELS)]


def columns_with(targets: np.ndarray, weights: np.ndarray) -> Columns:
    columns = columns_of(INPUTS, targets)
    return Columns(columns.inputs, columns.targets, columns.digests, weights=weights)


def gradient(built: Replica) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten().clone() for parameter in built.module.parameters()])  # type: ignore[union-attr]


def batch(targets: np.ndarray, rows: np.ndarray, of_step: int, weights: np.ndarray | None = None) -> Batch:
    own = None if weights is None else torch.from_numpy(weights[rows])
    return Batch(torch.from_numpy(INPUTS[rows]), torch.from_numpy(targets[rows]), rows, of_step, weights=own)


@pytest.mark.parametrize(("version", "targets"), CASES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_weight_counts_as_the_row_so_often(
    version: DatasetVersion, targets: np.ndarray, smoothing: float
) -> None:
    built = Replica(on_table(version), version, plain_steps(label_smoothing=smoothing), alone(), 100)
    repeated, rows = np.repeat(np.arange(len(INPUTS)), TIMES), np.arange(len(INPUTS))
    often = built.add_gradients(batch(targets, repeated, 1), 0, 0, 0, 1 / len(repeated))
    expected = gradient(built)
    built.optimizer.zero_grad()
    weights = scaled(TIMES.astype(float))
    sums = built.add_gradients(batch(targets, rows, 1, weights), 0, 0, 0, 1 / len(rows))
    assert torch.allclose(gradient(built), expected, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(sums, often, strict=True):
        assert float(ours) / len(rows) == pytest.approx(float(theirs) / len(repeated), rel=1e-5)


@pytest.mark.parametrize(("version", "targets"), CASES)
def test_validation_is_a_weighted_mean(version: DatasetVersion, targets: np.ndarray) -> None:
    built = Replica(on_table(version), version, plain_steps(), alone(), 100)
    repeated = np.repeat(np.arange(len(INPUTS)), TIMES)
    expected = built.validate(columns_of(INPUTS, targets), repeated)
    rows = np.arange(len(INPUTS))
    columns = weighted(columns_with(targets, TIMES.astype(float)), rows, rows, version, plain_steps())
    assert built.validate(columns, rows) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("version", "targets"), CASES)
def test_the_workers_of_a_step_divide_by_the_rows_of_all(
    version: DatasetVersion, targets: np.ndarray
) -> None:
    """The mean of the gradients of two ranks, as DDP takes it, is the gradient of a single worker."""
    weights, rows = scaled(TIMES.astype(float)), np.arange(len(INPUTS))
    built = Replica(on_table(version), version, plain_steps(), alone(), 100)
    built.add_gradients(batch(targets, rows, 40, weights), 0, 0, 0, 1 / 40)
    alone_gradient, of_ranks = gradient(built), []
    for part in (rows[:13], rows[13:]):
        built.optimizer.zero_grad()
        built.add_gradients(batch(targets, part, 40, weights), 0, 0, 0, 2 / 40)
        of_ranks.append(gradient(built))
    assert torch.allclose(sum(of_ranks) / 2, alone_gradient, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]


def test_passes_and_shards_keep_each_row_with_its_weight() -> None:
    version, targets = CASES[1]
    weights, rows = scaled(TIMES.astype(float)), np.arange(len(INPUTS))
    gradients = []
    for steps in (1, 4):
        settings = plain_steps(accumulation_steps=steps, global_batch_size=40)
        built = Replica(on_table(version), version, settings, alone(), 100)
        built.add_gradients(batch(targets, rows, 40, weights), 0, 0, 0, 1 / 40)
        gradients.append(gradient(built))
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)
    whole = batch(targets, rows, 40, weights)
    pieces = list(Batch(whole.inputs, whole.targets, rows, 40, (15, 25), whole.weights).split())
    assert [piece.weights.tolist() for piece in pieces] == [weights[:15].tolist(), weights[15:].tolist()]  # type: ignore[union-attr]


def test_weights_are_scaled_to_the_mean_1_of_each_use() -> None:
    learn, validate = np.arange(0, 30), np.arange(30, 40)
    plain_settings, version = plain_steps(), CASES[1][0]
    heavy = columns_with(LABELS, np.arange(40) * 1e300)
    made = weighted(heavy, learn, validate, version, plain_settings).weights
    assert made is not None
    assert made[learn].mean() == pytest.approx(1)
    assert made[validate].mean() == pytest.approx(1)
    assert made[2] / made[1] == pytest.approx(2)
    plain = columns_of(INPUTS, LABELS)
    assert weighted(plain, learn, validate, version, plain_settings) is plain
    empty = columns_with(LABELS, np.arange(40) * (np.arange(40) < 30.0))
    with pytest.raises(SettingError, match=r"the weights of all 10 rows to validate on are 0"):
        weighted(empty, learn, validate, version, plain_settings)


@pytest.mark.parametrize(
    ("trainer", "data", "message"),
    [
        ("lightning", {}, r"Table\(weight='w'\): trainer lightning takes no weights of rows"),
        ("transformers", {}, "trainer transformers takes no weights of rows"),
        ("xgboost", {"feed": "stream"}, r"data\.feed: stream carries no weights of rows"),
    ],
)
def test_a_training_that_would_ignore_weights_is_refused(
    trainer: str, data: dict[str, Any], message: str
) -> None:
    version = CASES[1][0]
    assert version.table is not None
    heavy = version.model_copy(update={"table": version.table.model_copy(update={"weight": "w"})})
    settings = Settings.model_validate({"training": {"trainer": trainer}, "data": data})
    check_weights(settings, version)
    with pytest.raises(SettingError, match=message):
        check_weights(settings, heavy)


def test_balanced_weights_of_classes_are_those_of_scikit_learn() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    labels, classes = np.repeat([0, 1, 2], [70, 20, 10]), ("a", "b", "c")
    ours = class_weights(labels, classes, "balanced")
    assert ours is not None
    assert ours.tolist() == pytest.approx(
        compute_class_weight("balanced", classes=np.arange(3), y=labels).tolist()
    )
    with_absent = class_weights(labels, (*classes, "d"), "balanced")
    assert with_absent is not None
    assert with_absent[:3].tolist() == ours.tolist()
    assert np.isfinite(with_absent).all()
    assert class_weights(labels, classes, None) is None


def test_weights_of_classes_and_of_rows_multiply() -> None:
    settings = plain_steps(class_weights={"b": 3})
    rows, version = np.arange(40), CASES[1][0]
    times = TIMES.astype(float)
    both = weighted(columns_with(LABELS, times), rows, rows, version, settings).weights
    assert both is not None
    assert np.allclose(both, scaled(times * np.where(LABELS == 1, 3.0, 1.0)))
    alone_weights = weighted(columns_of(INPUTS, LABELS), rows, rows, version, settings).weights
    assert alone_weights is not None
    assert np.allclose(alone_weights, scaled(np.where(LABELS == 1, 3.0, 1.0)))


def test_weights_of_classes_are_checked() -> None:
    with pytest.raises(SettingError, match=r"training\.class_weights: a regression has no classes to weigh"):
        check_weights(plain_steps(class_weights="balanced"), CASES[0][0])
    with pytest.raises(SettingError, match=r"training\.class_weights: no class 'ill'; the dataset has a, b"):
        check_weights(plain_steps(class_weights={"ill": 5}), CASES[1][0])
    check_weights(plain_steps(class_weights={"a": 5}), CASES[1][0])
    streamed = plain_steps(class_weights="balanced").model_copy(update={"data": DataSettings(feed="stream")})
    with pytest.raises(SettingError, match=r"data\.feed: stream carries no weights"):
        check_weights(streamed, CASES[1][0])
    for wrong in ({"a": 0}, {"a": -1}, {"a": float("inf")}, {"a": True}):
        with pytest.raises(SettingError, match=r"class 'a' needs a finite weight above 0"):
            plain_steps(class_weights=wrong)
    with pytest.raises(SettingError, match="class_weights"):
        plain_steps(class_weights="even")


def test_weights_of_classes_by_text_and_by_mapping_are_the_same_setting() -> None:
    base = plain_steps()
    by_text = resolve(base, parse_assignments(['training.class_weights={"b": 2, "a": 1.5}']))
    by_mapping = plain_steps(class_weights={"a": 1.5, "b": 2})
    assert by_text == by_mapping
    assert by_text.model_validate_json(by_text.model_dump_json()) == by_text  # as plans store it
    assert resolve(by_text, parse_assignments(["training.class_weights=none"])) == base
    keys = [ingredients_of(settings) for settings in (base, by_text)]
    assert keys[0] != keys[1]


def ingredients_of(settings: Settings) -> object:
    from training import identity
    from training.recipe import load

    return identity.ingredients(load("digits")[1], settings, "-", {})["settings"]


def written(folder: Path, times: np.ndarray, repeat: bool, regression: bool) -> Path:
    """300 rows with a column `w` of weights; with `repeat`, each row as often as its weight says, and weights of 1."""
    random = np.random.default_rng(0)
    numbers = random.integers(0, 12, (len(times), 3)).astype(float)  # a bin each
    score = numbers[:, 0] - numbers[:, 1] + random.normal(size=len(times)).round(2)
    chosen = np.repeat(np.arange(len(times)), times) if repeat else np.arange(len(times))
    columns: dict[str, Any] = {f"n{at}": numbers[chosen, at] for at in range(3)}
    target = score[chosen] if regression else np.where(score[chosen] > 0, "high", "low")
    columns |= {"target": target, "w": np.ones(len(chosen)) if repeat else times.astype(float)}
    pyarrow.csv.write_csv(pa.table(columns), folder / f"rows-{repeat}.csv")
    return folder / f"rows-{repeat}.csv"


def trained_on(
    home: Home, trainer: str, file: Path, regression: bool
) -> tuple[DatasetVersion, TrainedModel, np.ndarray]:
    """A training of trees on the table, and its predictions for 12 x 12 points."""
    problem: Any = "regression" if regression else "classification"
    version = prepared(home, Table(file, "target", weight="w"), file.stem, problem=problem)
    small = {"learning_rate": 0.3}
    # Penalties and limits would count a sum of weights as so many rows.
    small |= {"min_child_weight": 0.0, "reg_lambda": 0.0} if trainer == "XGBoost" else {"min_data_in_leaf": 1}
    job = boosted_job(home, version, trainer=trainer, training={"rounds": 5, "select": "last", **small})
    trained = launch(job)
    grid = np.stack([*np.meshgrid(np.arange(12.0), np.arange(12.0)), np.full((12, 12), 5.0)]).reshape(3, -1).T
    predict = inspection_of(job.settings.trainer).predictor(job.recipe, version, trained)  # type: ignore[arg-type]
    return version, trained, predict(grid.astype(np.float32))


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("trainer", ["XGBoost", "LightGBM"])
def test_trees_learn_a_weight_as_the_row_so_often(
    home: Home, tmp_path: Path, trainer: str, regression: bool
) -> None:
    times = np.random.default_rng(4).integers(1, 4, 300)
    runs = [
        trained_on(home, trainer, written(tmp_path, times, repeat, regression), regression)
        for repeat in (False, True)
    ]
    (_, once, answers), (_, repeated, repeated_answers) = runs
    ones = trained_on(home, trainer, written(tmp_path, np.ones(300, int), False, regression), regression)[2]
    assert np.allclose(answers, repeated_answers, rtol=1e-3, atol=1e-3)
    assert np.abs(answers - ones).max() > 0.01
    for ours, theirs in zip(once.history, repeated.history, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-4)
        assert ours.validation_loss == pytest.approx(theirs.validation_loss, rel=1e-4)
        assert ours.validation_score == pytest.approx(theirs.validation_score, rel=1e-4)


@pytest.mark.parametrize("trainer", ["XGBoost", "LightGBM"])
def test_trees_learn_weights_of_classes_as_those_of_rows(home: Home, tmp_path: Path, trainer: str) -> None:
    file = written(tmp_path, np.ones(300, int), False, False)
    version = prepared(home, Table(file, "target", drop=["w"]), "plain")
    rows = pyarrow.csv.read_csv(file)
    heavy = np.where(np.asarray(rows["target"]) == "high", 4.0, 1.0)
    pyarrow.csv.write_csv(rows.set_column(4, "w", pa.array(heavy)), tmp_path / "heavy.csv")
    by_row = prepared(home, Table(tmp_path / "heavy.csv", "target", weight="w"), "heavy")
    own = {"rounds": 4, "learning_rate": 0.3}
    runs = [
        launch(boosted_job(home, by_row, trainer=trainer, training=own)),
        launch(boosted_job(home, version, trainer=trainer, training={**own, "class_weights": {"high": 4}})),
        launch(boosted_job(home, version, trainer=trainer, training=own)),
    ]
    digests = [run.weights_digest for run in runs]
    assert digests[0] == digests[1] != digests[2]


def test_a_network_learns_with_weights_to_the_end(home: Home, tmp_path: Path) -> None:
    """A whole training, whose recorded validation loss is the weighted mean over the validation rows."""
    times = np.random.default_rng(4).integers(0, 4, 300)
    version = prepared(
        home,
        Table(written(tmp_path, times, False, True), "target", weight="w"),
        "heavy",
        problem="regression",
    )
    from training.recipe import load
    from training.trainers.rows import training_rows

    base = {"scaling": {"num_workers": 0, "use_gpu": "no"}, "tracking": {"system_metrics": False}}
    own = {"training": {"epochs": 2, "select": "last", "global_batch_size": 32}}
    job = job_for(home, version, resolve(load("diabetes")[0].settings, base, own), recipe="diabetes")
    trained = launch(job)
    columns = open_columns(version, "train")
    rows = training_rows(columns, job.settings)[1]
    predict = inspection_of(job.settings.trainer).predictor(load("diabetes")[0], version, trained)
    assert columns.weights is not None
    errors = (predict(columns.inputs[rows]) - columns.targets[rows]) ** 2
    mean = float(np.average(errors, weights=columns.weights[rows]))
    assert trained.history[-1].validation_score == pytest.approx(np.sqrt(mean), rel=1e-4)
    assert abs(mean - errors.mean()) > 1e-3 * mean
