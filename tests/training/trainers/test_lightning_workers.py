"""Lightning on real Ray workers: one is killed, and the model stays the same, bit for bit."""

from pathlib import Path

import pytest
from lightning_runs import changed, write_lightning
from network_runs import check_a_killed_worker_changes_no_bit, small_job

from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch

pytest.importorskip("lightning", reason="install the extras by: make setup EXTRAS=all")
pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("ray_session")]


def test_a_killed_worker_changes_no_bit(home: Home, tmp_path: Path, digits_version: DatasetVersion) -> None:
    recipe = write_lightning(tmp_path / "recipe")
    check_a_killed_worker_changes_no_bit(
        recipe, digits_version, home, calm=Home(tmp_path / "calm"), score=0.8
    )


def test_workers_have_the_same_learning_rate_without_sync_dist(
    home: Home, tmp_path: Path, digits_version: DatasetVersion
) -> None:
    """One worker's value falls and the other's rises: another learning rate would fail the check of the weights."""
    logged = "functional.cross_entropy(self(images), labels), sync_dist=True"
    own = "10.0 * self.current_epoch * (1 if self.global_rank else -1)"
    recipe = changed(write_lightning(tmp_path / "recipe"), (logged, own))
    trained = launch(small_job(home, digits_version, recipe, workers=2, training={"epochs": 6}))
    rates = [row.learning_rate for row in trained.history]
    assert rates[-1] < rates[0]  # the scheduler acted


def test_a_loss_may_leave_out_a_part_of_the_module(
    home: Home, tmp_path: Path, digits_version: DatasetVersion
) -> None:
    unused = "        self.unused = nn.Linear(3, 3)\n\n        self.register_buffer("
    recipe = changed(write_lightning(tmp_path / "recipe"), ("\n        self.register_buffer(", unused))
    assert launch(small_job(home, digits_version, recipe, workers=2, training={"epochs": 1})).steps > 0
