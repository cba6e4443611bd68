"""A network on a table, trained in this process: it learns, and resumes to the same bits."""

from typing import Any

import numpy as np
import pytest
from crashes import SAVE_EACH_STEP, crashed, outcome, points
from small_runs import job_for, prepared

from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile
from training.data.dataset import open_columns
from training.data.sources.sklearn_tables import BundledTable
from training.errors import SettingError
from training.recipe import load
from training.records import DatasetVersion
from training.settings.overrides import resolve
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.network.serving import predictor, serving_module


@pytest.fixture(scope="module")
def diabetes(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    home = Home(tmp_path_factory.mktemp("home"))
    return prepared(home, BundledTable("diabetes"), "diabetes", problem="regression")


def job_on(home: Home, version: DatasetVersion, **sections: Any) -> TrainingJob:
    here = {"scaling": {"num_workers": 0, "use_gpu": "no"}, "tracking": {"system_metrics": False}}
    return job_for(home, version, resolve(load("diabetes")[0].settings, here, sections), "diabetes")


def test_the_built_in_network_explains_two_fifths_of_the_variance(
    home: Home, diabetes: DatasetVersion
) -> None:
    """Ridge regression reaches an R² of 0.45 on these test rows."""
    job = job_on(home, diabetes)
    trained = launch(job)
    test = open_columns(diabetes, "test")
    predicted = predictor(serving_module(load("diabetes")[0], diabetes, trained), 512)(test.inputs)
    assert predicted.shape == (len(test),)
    assert predicted.dtype == np.dtype("float32")
    errors, spread = predicted - test.targets, test.targets - test.targets.mean()
    assert 1 - (errors**2).sum() / (spread**2).sum() >= 0.4
    assert trained.reproducible
    names = set().union(*(point.values for point in MetricsFile(job.paths.metrics).read()))
    assert {"train/rmse", "validation/rmse", "validation/loss", "speed/rows_per_s"} <= names
    assert not {"train/accuracy", "validation/accuracy", "speed/images_per_s"} & names
    first, last = trained.history[0], trained.selected()
    assert first.train_score > 1.2 * last.train_score
    table = diabetes.table
    assert table is not None
    assert last.validation_score == pytest.approx(table.target_std * last.validation_loss**0.5, rel=1e-5)


@pytest.mark.parametrize("step", [3, 7])
def test_a_crash_changes_no_bit_of_a_regression(home: Home, diabetes: DatasetVersion, step: int) -> None:
    settings: dict[str, Any] = SAVE_EACH_STEP | {"training": {"epochs": 2, "global_batch_size": 64}}
    whole, halted = (job_on(Home(home.root / name), diabetes, **settings) for name in ("whole", "halted"))
    undisturbed = outcome(whole, launch(whole))
    crashed(halted, step)
    assert outcome(halted, launch(halted)) == undisturbed
    assert len(points(whole)) > 8


def test_a_data_loader_gives_rows_of_a_table(home: Home, diabetes: DatasetVersion) -> None:
    trained = launch(job_on(home, diabetes, data={"feed": "loader"}, training={"epochs": 2}))
    assert trained.history[1].train_loss < trained.history[0].train_loss


def test_a_stream_of_a_table_is_refused(home: Home, diabetes: DatasetVersion) -> None:
    with pytest.raises(SettingError, match=r"data\.feed: .*data\.feed=memory"):
        job_on(home, diabetes, data={"feed": "stream"}, scaling={"num_workers": 1, "use_gpu": "no"})
