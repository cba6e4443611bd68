"""Weights of rows on two workers: the same loss as on one, whose rows are divided among them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from boosted_tables import boosted_job
from small_runs import job_for, prepared

from training.attempts.job import TrainingJob
from training.data.sources.table import Table
from training.recipe import load
from training.records import DatasetVersion
from training.settings.overrides import resolve
from training.storage.paths import Home
from training.supervision.launch import launch

TWO = {"num_workers": 2, "cpus_per_worker": 0.5, "use_gpu": "no"}
ALONE = {"num_workers": 0, "use_gpu": "no"}


@pytest.fixture
def heavy(home: Home, tmp_path: Path) -> DatasetVersion:
    """300 rows in which large weights come together."""
    random = np.random.default_rng(0)
    numbers = random.integers(0, 12, (300, 3)).astype(float)
    columns = {f"n{at}": numbers[:, at] for at in range(3)}
    columns["target"] = numbers[:, 0] - numbers[:, 1] + random.normal(size=300).round(2)
    columns["w"] = np.where(np.arange(300) % 7, 0.5, 20.0)
    pyarrow.csv.write_csv(pa.table(columns), tmp_path / "heavy.csv")
    return prepared(home, Table(tmp_path / "heavy.csv", "target", weight="w"), "heavy", problem="regression")


def job(home: Home, version: DatasetVersion, trainer: str, scaling: dict[str, object]) -> TrainingJob:
    if trainer != "torch":
        own = {"rounds": 5, "select": "last"}
        return boosted_job(home, version, trainer=trainer, training=own, scaling=scaling)
    training = {"epochs": 2, "select": "last", "global_batch_size": 32}
    own = {"scaling": scaling, "training": training, "tracking": {"system_metrics": False}}
    return job_for(home, version, resolve(load("diabetes")[0].settings, own), recipe="diabetes")


@pytest.mark.parametrize("trainer", ["torch", "XGBoost", "LightGBM"])
def test_two_workers_learn_as_one(home: Home, heavy: DatasetVersion, trainer: str) -> None:
    one, two = (launch(job(home, heavy, trainer, scaling)) for scaling in (ALONE, TWO))
    assert (one.world_size, two.world_size) == (1, 2)
    for ours, theirs in zip(one.history, two.history, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-3)
        assert ours.validation_loss == pytest.approx(theirs.validation_loss, rel=1e-3)
