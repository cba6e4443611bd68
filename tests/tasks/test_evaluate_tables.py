"""Models on tables, trained, compared with the champion, registered and verified: regression and XGBoost."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from logged_before import log_trees
from table_candidates import COLOURS, Candidate, candidate, parcels

import tasks.evaluate
from tasks.evaluate import compare
from tasks.model_formats import xgboost_ubj
from tasks.own_columns import same_inputs
from tasks.predict import predict
from tasks.registry.aliases import champion_of, load_version
from tasks.registry.rollback import roll_back
from tasks.trackers.mlflow_run import connect
from tasks.verify import agreement, files, registered, rows, weights
from training.data.dataset import open_columns
from training.data.tables.encoding import encode, typed_rows
from training.errors import DataError, SettingError, TrainingError
from training.problems.regression import RegressionScore
from training.recipe import load
from training.records import Release
from training.storage.paths import Home
from training.trainers.xgboost import inspection

pytest.importorskip("xgboost")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Candidate, Release]:
    """A home with the first champion, a poor one of 3 rounds."""
    new_candidate = candidate(Home(tmp_path_factory.mktemp("home")), parcels(), rounds=3)
    return new_candidate, new_candidate.register()


@pytest.fixture(scope="module")
def second(first: tuple[Candidate, Release]) -> tuple[Candidate, Release]:
    """A better candidate in the same home."""
    new_candidate = candidate(first[0].home, parcels(), rounds=12)
    return new_candidate, new_candidate.register()


def candidate_predicts(monkeypatch: pytest.MonkeyPatch, predict: Any) -> None:
    """Make the candidate give the predictions of `predict`, instead of those of its trees."""
    inspection = SimpleNamespace(predictor=lambda *_: predict)
    monkeypatch.setattr(tasks.evaluate, "inspection_of", lambda _: inspection)


def test_the_first_regression_becomes_champion_with_the_metrics_of_a_regression(
    first: tuple[Candidate, Release],
) -> None:
    new_candidate, release = first
    assert release.alias == "champion"
    score = new_candidate.evaluation.candidate
    assert isinstance(score, RegressionScore)
    assert new_candidate.evaluation.champion is None
    assert release.metrics["rmse"] == score.rmse
    assert set(release.metrics) >= {
        "rmse", "rmse_low", "rmse_high", "mae", "r2", "validation_loss", "validation_rmse", "latency_ms",
    }  # fmt: skip
    assert release.metrics["validation_loss"] == pytest.approx(release.metrics["validation_rmse"] ** 2)


def test_the_saved_predictions_are_those_of_the_scores(second: tuple[Candidate, Release]) -> None:
    new_candidate, _ = second
    table = pq.read_table(new_candidate.evaluation.predictions)
    assert table.column_names == ["label", "digest", "compared", "candidate", "champion", "baseline"]
    labels = table["label"].to_numpy()
    assert np.array_equal(labels, open_columns(new_candidate.version, "test").targets)
    for name, score in (
        ("candidate", new_candidate.evaluation.candidate),
        ("champion", new_candidate.evaluation.champion),
    ):
        assert isinstance(score, RegressionScore)
        errors = table[name].to_numpy() - labels
        assert np.sqrt(np.square(errors).mean()) == pytest.approx(score.rmse, rel=1e-12)
    assert table["compared"].to_numpy().all()


def test_the_largest_errors_name_rows_of_the_test_split(second: tuple[Candidate, Release]) -> None:
    new_candidate, _ = second
    table = pq.read_table(new_candidate.evaluation.predictions)
    errors = new_candidate.evaluation.largest_errors
    assert len(errors) == 24
    for error in errors:
        assert table["label"][error.row].as_py() == error.truth
        assert table["candidate"][error.row].as_py() == pytest.approx(error.predicted)
    sizes = [abs(error.predicted - error.truth) for error in errors]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == pytest.approx(np.abs(table["candidate"].to_numpy() - table["label"].to_numpy()).max())


def test_a_better_regression_replaces_the_champion(second: tuple[Candidate, Release]) -> None:
    new_candidate, release = second
    assert release.alias == "champion"
    assert release.metrics["champion_rmse"] > release.metrics["rmse"]
    (look,) = release.verdict.looks
    assert (look.measure, look.passed) == ("squared_error", True)
    assert look.rows == new_candidate.evaluation.rows
    assert release.verdict.summary.startswith("Promoted over version 1: RMSE")


def test_the_registered_version_says_what_it_is(second: tuple[Candidate, Release]) -> None:
    new_candidate, release = second
    client = connect(None, new_candidate.home)
    entry = client.get_model_version(release.model, release.version)
    assert "evergreen.weights_file" not in entry.tags  # the model is the file of weights
    assert entry.tags["evergreen.classes"] == "[]"
    assert entry.description is not None
    assert f"RMSE {release.metrics['rmse']:.4g} (95\N{NO-BREAK SPACE}% confidence: " in entry.description
    assert f"on {new_candidate.evaluation.rows:,} test rows" in entry.description
    assert f"{new_candidate.version.rows('train'):,} rows of parcels" in entry.description
    assert "12 rounds" in entry.description
    model = client.get_registered_model(release.model)
    assert model.description.startswith("Predicts price as a number, from 2 columns of a table.")
    loaded = load_version(new_candidate.home, release.model, release.version)
    assert loaded.problem == "regression"
    assert loaded.table == new_candidate.version.table


def test_a_run_on_a_table_passes_the_checks_of_verify(second: tuple[Candidate, Release]) -> None:
    new_candidate, release = second
    finished = new_candidate.evidence()
    new_candidate.keep(release)
    checks = (
        weights.recorded, weights.of_checkpoint, weights.tagged, registered.one_version, registered.same_answers,
        rows.used_once, files.dataset, files.columns, files.checkpoints, agreement.records_agree,
        agreement.verdict_follows, agreement.scores_follow,
    )  # fmt: skip
    for check in checks:
        outcome = check(finished)
        assert outcome.ok, f"{check.__name__}: {outcome.detail}"


@pytest.mark.parametrize("column", ["candidate", "champion"])
def test_verify_finds_changed_predictions(second: tuple[Candidate, Release], column: str) -> None:
    new_candidate, release = second
    new_candidate.keep(release)
    path = Path(new_candidate.evaluation.predictions)
    whole = path.read_bytes()
    table = pq.read_table(path)
    values = table[column].to_numpy().copy()
    values[3] += 1
    try:
        pq.write_table(table.set_column(table.column_names.index(column), column, [values]), path)
        outcome = agreement.scores_follow(new_candidate.evidence())
    finally:
        path.write_bytes(whole)
    assert outcome.ok is False
    assert "rmse" in outcome.detail


def test_verify_finds_a_changed_model_file(second: tuple[Candidate, Release]) -> None:
    new_candidate, _ = second
    path = Path(new_candidate.trained.weights)
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        outcome = weights.recorded(new_candidate.evidence())
    finally:
        path.write_bytes(whole)
    assert outcome.ok is False


# --- a champion of another table


def test_a_champion_gets_its_own_categories_and_its_own_order_of_columns(
    second: tuple[Candidate, Release],
) -> None:
    """The new table has a colour before the others, so each category has another number, and another order."""
    home = second[0].home
    champion = champion_of(connect(None, home), "parcels")
    assert champion is not None
    table = parcels(colours=COLOURS)
    table.loc[::17, "colour"] = "amber"
    new_candidate = candidate(home, table[["colour", "price", "weight"]], rounds=5)
    theirs = load_version(home, "parcels", champion)
    assert theirs.table is not None
    assert new_candidate.version.table is not None
    assert not same_inputs(theirs.table, new_candidate.version.table)
    assert [column.name for column in theirs.table.columns] == ["weight", "colour"]
    assert new_candidate.version.table.columns[0].categories[0] == "amber"
    predictions = pq.read_table(new_candidate.evaluation.predictions)
    parts = pq.read_table(sorted((Path(new_candidate.version.path) / "test").glob("part-*.parquet")))
    wanted = theirs.predict(encode(parts, theirs.table, "feature."))
    assert np.array_equal(predictions["champion"].to_numpy().astype(np.float32), wanted)
    wrong = theirs.predict(np.array(open_columns(new_candidate.version, "test").inputs))
    assert not np.array_equal(predictions["champion"].to_numpy().astype(np.float32), wrong)
    assert np.isfinite(predictions["champion"].to_numpy()).all()


def test_a_champion_for_another_problem_can_not_be_compared(second: tuple[Candidate, Release]) -> None:
    table = parcels().assign(price=lambda frame: np.where(frame.price > 20, "high", "low"))
    with pytest.raises(SettingError, match=r"is a model for regression.*tracking\.model"):
        candidate(second[0].home, table, problem="Classification", rounds=5)


# --- predictions that are not finite


def test_predictions_that_are_not_finite_name_the_row_or_the_version(
    second: tuple[Candidate, Release], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    new_candidate, _ = second
    broken = np.array(open_columns(new_candidate.version, "test").targets, np.float32)
    broken[5] = np.nan

    def predict(inputs: Any) -> Any:
        return broken[: len(inputs)]

    number = champion_of(connect(None, new_candidate.home), "parcels")
    assert number is not None
    champion = tasks.evaluate.ComparedVersion(number, predict, (), np.empty(0, np.uint64))
    with pytest.raises(
        DataError, match=rf"parcels version {number} gives predictions that are not finite.*rollback"
    ):
        compare(new_candidate.plan, new_candidate.version, new_candidate.trained, champion, None, tmp_path)

    candidate_predicts(monkeypatch, predict)
    with pytest.raises(TrainingError, match=r"test row 5: the model's prediction is not finite"):
        compare(new_candidate.plan, new_candidate.version, new_candidate.trained, None, None, tmp_path)


# --- classification on a table


@pytest.mark.extended
def test_a_classification_on_a_table_is_compared_by_its_classes(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    table = parcels().assign(price=lambda frame: np.where(frame.price > 20, "high", "low"))
    poor = candidate(home, table, problem="Classification", rounds=1)
    assert poor.register().alias == "champion"
    more = table.assign(price=lambda frame: np.where(frame.weight < 2, "tiny", frame.price))
    new_candidate = candidate(home, more, problem="Classification", rounds=12)
    assert new_candidate.version.classes == ("high", "low", "tiny")
    release = new_candidate.register()
    assert release.metrics["accuracy"] > release.metrics["champion_accuracy"]
    assert release.alias == "champion"
    assert [rule.name for rule in release.verdict.rules] == ["floor", "better", "class_drop"]
    tags = connect(None, home).get_model_version("parcels", release.version).tags
    assert json.loads(tags["evergreen.classes"]) == ["high", "low", "tiny"]
    shutil.rmtree(home.root)


def test_probabilities_that_are_not_finite_name_the_candidates_row_or_the_champion(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = parcels().assign(price=lambda frame: np.where(frame.price > 20, "high", "low"))
    new_candidate = candidate(home, table, problem="Classification", rounds=1)
    broken = np.full((new_candidate.version.rows("test"), 2), 0.5, np.float32)
    broken[5] = np.nan

    def predict(inputs: Any) -> Any:
        return broken[: len(inputs)]

    for classes in (("high", "low"), ("low", "high")):
        champion = tasks.evaluate.ComparedVersion("7", predict, classes, np.empty(0, np.uint64))
        with pytest.raises(DataError, match=r"parcels version 7 gives predictions that are not finite"):
            compare(
                new_candidate.plan, new_candidate.version, new_candidate.trained, champion, None, tmp_path
            )

    candidate_predicts(monkeypatch, predict)
    with pytest.raises(TrainingError, match=r"test row 5: the model's probabilities are not finite"):
        compare(new_candidate.plan, new_candidate.version, new_candidate.trained, None, None, tmp_path)


@pytest.mark.extended
def test_names_of_classes_that_are_too_long_for_a_tag_are_in_the_metadata(home: Home) -> None:
    names = ("a" * 60_000, "b" * 60_000)
    table = parcels().assign(price=lambda frame: np.where(frame.price > 20, *names))
    first = candidate(home, table, problem="Classification", rounds=1).register()
    assert first.alias == "champion"
    client = connect(None, home)
    assert "evergreen.classes" not in client.get_model_version("parcels", first.version).tags
    assert load_version(home, "parcels", first.version).classes == names
    more = table.assign(price=lambda frame: np.where(frame.weight < 2, "0", frame.price))
    release = candidate(home, more, problem="Classification", rounds=12).register()
    assert release.metrics["accuracy"] > release.metrics["champion_accuracy"] > 0.5


def test_a_champion_of_the_release_before_is_judged_predicted_with_and_rolled_back_to(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(xgboost_ubj, "log_model", log_trees)
        older = candidate(home, parcels(), rounds=3)
        before = older.register()
    (described,) = home.mlflow_artifacts.rglob("MLmodel")
    assert "loader_module: mlflow.xgboost" in described.read_text()
    newer = candidate(home, parcels(), rounds=12)
    assert isinstance(newer.evaluation.champion, RegressionScore)
    assert isinstance(older.evaluation.candidate, RegressionScore)
    assert newer.evaluation.champion.rmse == pytest.approx(older.evaluation.candidate.rmse, rel=1e-6)
    assert newer.register().alias == "champion"
    assert roll_back(connect(None, home), home, "parcels", "")[1] == before.version
    rows = parcels().drop(columns="price")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    source, output = str(tmp_path / "rows.csv"), str(tmp_path / "found.parquet")
    summary = predict.fn(str(home.root), "parcels", source, output)
    assert summary.version == before.version
    written = pq.read_table(output)["prediction"].to_numpy()
    assert older.version.table is not None
    inputs = encode(typed_rows(pa.Table.from_pandas(rows), older.version.table).rows, older.version.table)
    trained = inspection.predictor(load(older.plan.recipe.path)[0], older.version, older.trained)
    assert np.array_equal(written, trained(inputs))
