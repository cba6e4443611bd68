"""Two nights on a table whose column was rewritten: with a key, rows stay in their splits and are told as changed."""

from pathlib import Path

import pytest

from flows.cli.summary import print_release
from flows.retrain import retrain
from tasks.trackers.mlflow_run import connect
from training.data.manifest import read_manifest
from training.data.row_digests import known_rows, rows_among
from training.records import DatasetVersion, Release
from training.storage.paths import Home

pytestmark = pytest.mark.usefixtures("prefect_harness")

RECIPE = """
from evergreen import Classification, Recipe, Table, XGBoost

recipe = Recipe(
    name="customers",
    source=Table("customers.csv", target="left", key="id"),
    problem=Classification(),
    trainer=XGBoost(rounds=4, max_depth=2),
)
"""


def night(folder: Path, rows: int, more: float = 0.0) -> Release:
    """Write the night's table and retrain in this process."""
    (folder / "customers.py").write_text(RECIPE)
    lines = [
        f"{row},{20 + row % 40 + more},{row % 7},{'yes' if row % 40 > 18 else 'no'}" for row in range(rows)
    ]
    (folder / "customers.csv").write_text("\n".join(["id,age,visits,left", *lines]) + "\n")
    settings = {"scaling": {"num_workers": 0}, "tracking": {"system_metrics": False}}
    return retrain(str(folder / "customers.py"), settings)


def test_two_nights(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = night(tmp_path, 300), night(tmp_path, 320, more=0.01)
    assert first.data_changes == ""
    assert second.data_changes == "300 rows changed, 20 new, 0 removed"
    old, new = (dataset(home, release) for release in (first, second))
    assert not rows_among(new, "test", known_rows(old, "train")).any()
    assert second.test_rows == new.rows("test")  # no test row was left out
    print_release(second)
    assert "300 rows changed, 20 new, 0 removed" in capsys.readouterr().out
    assert "300 rows changed, 20 new" in Path(second.report).read_text()
    described = connect(None, home).get_model_version("customers", second.version).description
    assert "Data since the run before: 300 rows changed, 20 new, 0 removed." in described


def dataset(home: Home, release: Release) -> DatasetVersion:
    return read_manifest(home.dataset("customers", release.dataset_fingerprint), release.dataset_fingerprint)
