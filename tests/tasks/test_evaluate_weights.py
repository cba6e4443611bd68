"""Candidates on tables with weights or a threshold: trained, compared with the champion, registered, verified."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from small_tables import described
from table_candidates import candidate, parcels

from tasks.evaluate import ComparedVersion
from tasks.evaluate import _threshold as threshold_in
from tasks.inference.outputs import outputs_of
from tasks.registry.aliases import load_version, version_tags
from tasks.trackers.mlflow_run import connect
from tasks.verify import agreement
from training.data.dataset import open_columns
from training.storage.paths import Home

pytest.importorskip("xgboost")
WEIGHTED = ', weight="counts"'


def weighed(kind: bool = False) -> pd.DataFrame:
    """Parcels with weights; with `kind`, also with the class `dear` or `cheap` in place of the price."""
    table = parcels()
    table["counts"] = np.random.default_rng(1).integers(0, 5, len(table)) * 0.5
    if kind:
        table["price"] = np.where(table["price"] > table["price"].median(), "dear", "cheap")
    return table


@pytest.mark.parametrize("problem", ["Regression", "Classification"])
def test_scores_looks_and_records_agree(home: Home, problem: str) -> None:
    table = weighed(problem == "Classification")
    first = candidate(home, table, problem, rounds=1, options=WEIGHTED)
    first.keep(first.register())
    second = candidate(home, table, problem, rounds=12, options=WEIGHTED)
    release = second.register()
    second.keep(release)
    saved = pq.read_table(second.evaluation.predictions)
    test = open_columns(second.version, "test")
    assert test.weights is not None
    weights = saved["weight"].to_numpy()
    assert weights.mean() == pytest.approx(1)
    assert np.allclose(weights * test.weights.mean(), test.weights)
    labels, answers = saved["label"].to_numpy(), saved["candidate"].to_numpy()
    if problem == "Regression":
        mean = np.average((answers - labels) ** 2, weights=test.weights)
        assert second.evaluation.candidate.rmse == pytest.approx(np.sqrt(mean))  # type: ignore[attr-defined]
    else:
        mean = np.average(answers == labels, weights=test.weights)
        assert second.evaluation.candidate.accuracy == pytest.approx(mean)  # type: ignore[attr-defined]
        assert mean != (answers == labels).mean()
    found = agreement.scores_follow(second.evidence())
    assert found.ok, found
    (look,) = release.verdict.looks
    assert look.measure == ("squared_error" if problem == "Regression" else "weighted_accuracy")
    assert release.verdict.promote or "weighted accuracy" in release.verdict.summary


def test_a_threshold_is_chosen_registered_and_used(home: Home) -> None:
    table = weighed(kind=True)
    table["price"] = np.where(parcels()["price"] > parcels()["price"].quantile(0.8), "dear", "cheap")
    own = {"training": {"threshold": {"dear": 20, "cheap": 1}}}
    first = candidate(home, table, "Classification", rounds=2)
    assert first.trained.threshold is None
    first.keep(first.register())
    second = candidate(home, table, "Classification", rounds=2, **own)
    assert second.trained.weights_digest == first.trained.weights_digest
    threshold = second.trained.threshold
    assert threshold is not None
    release = second.register()
    second.keep(release)
    registered = load_version(home, second.plan.model, release.version)
    assert registered.threshold == threshold
    test = open_columns(second.version, "test")
    given = registered.predict(test.inputs)
    answers = (given[:, 1] >= threshold).astype(int)
    assert (answers != given.argmax(1)).any()
    saved = pq.read_table(second.evaluation.predictions)
    assert np.array_equal(saved["candidate"].to_numpy(), answers)
    assert np.array_equal(saved["champion"].to_numpy(), given.argmax(1))  # the champion has no threshold
    assert second.evaluation.candidate.accuracy == (answers == test.targets).mean()  # type: ignore[attr-defined]
    assert agreement.scores_follow(second.evidence()).ok
    tags = version_tags(connect(None, home), second.plan.model, release.version)
    assert float(tags["evergreen.threshold"]) == threshold
    # Tables and totals that predict writes.
    outputs = outputs_of(registered, "the model")
    made = outputs.columns(given)
    assert made["class"].to_pylist() == [second.version.classes[answer] for answer in answers]
    assert np.allclose(made["probability"], given[np.arange(len(given)), answers])
    totals = outputs.totals()
    totals.add(given)
    assert totals.summary()["counts"] == {
        "cheap": int((answers == 0).sum()),
        "dear": int((answers == 1).sum()),
    }
    # The same weights with another threshold are another candidate, whose look is a new one.
    look = release.verdict.looks[0]
    third = candidate(home, table, "Classification", rounds=2, training={"threshold": 0.45})
    assert third.trained.threshold == 0.45
    assert third.register().verdict.looks[0].key != look.key


def test_the_threshold_of_a_champion_with_the_classes_in_another_order() -> None:
    version = described(np.zeros((4, 3), np.float32)).model_copy(update={"classes": ("a", "b")})

    def champion(classes: tuple[str, ...], threshold: float | None) -> ComparedVersion:
        return ComparedVersion("3", lambda rows: rows, classes, None, threshold=threshold)

    assert threshold_in(None, version) is None
    assert threshold_in(champion(("a", "b"), 0.3), version) == 0.3
    assert threshold_in(champion(("b", "a"), 0.3), version) == pytest.approx(0.7)
    assert threshold_in(champion(("b", "c"), 0.3), version) is None
