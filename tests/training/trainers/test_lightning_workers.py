"""Lightning on real Ray workers: one is killed, and the model stays the same, bit for bit."""

from pathlib import Path

import pytest
from lightning_runs import write_lightning
from network_runs import check_a_killed_worker_changes_no_bit

from training.records import DatasetVersion
from training.storage.paths import Home

pytest.importorskip("lightning", reason="install the extras by: make setup EXTRAS=all")
pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("ray_session")]


def test_a_killed_worker_changes_no_bit(home: Home, tmp_path: Path, digits_version: DatasetVersion) -> None:
    recipe = write_lightning(tmp_path / "recipe")
    check_a_killed_worker_changes_no_bit(
        recipe, digits_version, home, calm=Home(tmp_path / "calm"), score=0.8
    )
