"""A loop with Accelerate on real Ray workers: one is killed, and the model stays the same, bit for bit."""

from pathlib import Path

import pytest
from network_runs import check_a_killed_worker_changes_no_bit, small_job
from own_loops import write_loop

from training.errors import TrainingError
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch

pytest.importorskip("accelerate", reason="install the extras by: make setup EXTRAS=all")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]


def test_a_killed_worker_changes_no_bit(home: Home, tmp_path: Path, digits_version: DatasetVersion) -> None:
    recipe = write_loop(tmp_path / "recipe")
    check_a_killed_worker_changes_no_bit(
        recipe, digits_version, home, calm=Home(tmp_path / "calm"), score=0.8
    )


def test_workers_that_exchange_no_gradients_are_found(
    home: Home, tmp_path: Path, digits_version: DatasetVersion
) -> None:
    recipe = write_loop(tmp_path / "recipe", ("outputs = model(inputs)", "outputs = model.module(inputs)"))
    job = small_job(home, digits_version, recipe, workers=2, training={"global_batch_size": 16, "epochs": 2})
    with pytest.raises(TrainingError, match="after epoch 1 the workers have different weights"):
        launch(job)
