"""The contract of a problem, for `absolute_error.py`, and its gate. A test file of the product."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_diabetes
from test_problem_contract import TestRegression, version_of

from training.problems import problem_named
from training.problems.base import Problem
from training.problems.objectives import objective_named
from training.records import DatasetVersion, TableColumn, TableSchema
from training.storage.paths import HOME_VARIABLE, Home

NAME = "absolute_error"
RECIPE = """
from evergreen import BundledTable, Recipe
from training.problems.absolute_error import AbsoluteError


def build_model(shape, outputs):
    from torch import nn

    return nn.Linear(shape[0], outputs)


recipe = Recipe("own", "for a test", BundledTable("diabetes"), problem=AbsoluteError(), build_model=build_model)
"""
SETTINGS = {
    "scaling": {"num_workers": 0, "use_gpu": "no"},
    "tracking": {"system_metrics": False},
    "training": {"epochs": 20, "learning_rate": 0.1},
}
Regression = TestRegression
del TestRegression  # or its tests would run here, too


class TestAbsoluteError(Regression):
    """On the same rows as a regression."""

    def problem(self) -> Problem:
        return problem_named(NAME)

    def version(self) -> DatasetVersion:
        columns = (TableColumn(name="weight", kind="number"),)
        schema = TableSchema(target="price", columns=columns, target_mean=300, target_std=40)
        return version_of(NAME, (), schema)

    def test_its_objective_is_the_problem_itself(self) -> None:
        assert objective_named(NAME) == self.problem()


@pytest.mark.usefixtures("prefect_harness")
def test_two_runs_from_training_to_report_and_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.retrain import retrain
    from tasks import predict
    from tasks.verify import verify

    home = Home(tmp_path / "home")
    monkeypatch.setenv(HOME_VARIABLE, str(home.root))
    (tmp_path / "own.py").write_text(RECIPE)
    for changed, promoted in (({}, True), ({"epochs": 1}, False)):
        settings = SETTINGS | {"training": SETTINGS["training"] | changed}
        release = retrain(str(tmp_path / "own.py"), settings)
        assert release.verdict.promote is promoted, release.verdict.summary
        assert "mean absolute error" in release.verdict.summary
        assert ("always answering the median" in release.verdict.summary) is promoted
        page = Path(release.report).read_text()
        assert "The test rows with the candidate&#39;s largest errors." in page
        assert "Share removed" in page
        assert not [
            finding for finding in verify(home.run("own", release.run_key), home) if finding.ok is False
        ]
    table = load_diabetes(as_frame=True, scaled=False).data.head(8)
    table.to_csv(tmp_path / "rows.csv", index=False)
    predict.predict.fn(str(home.root), "own", str(tmp_path / "rows.csv"), str(tmp_path / "out.parquet"))
    predicted = pq.read_table(tmp_path / "out.parquet")["prediction"].to_numpy()
    assert predicted.shape == (8,)
    assert np.isfinite(predicted).all()
