"""Candidates on tables with weights: trained, compared with the champion, registered and verified."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from table_candidates import candidate, parcels

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
    assert found.passed, found
    (look,) = release.verdict.looks
    assert look.measure == ("squared_error" if problem == "Regression" else "weighted_accuracy")
    assert release.verdict.promote
