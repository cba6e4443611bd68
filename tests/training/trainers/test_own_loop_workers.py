"""A loop with Accelerate on real Ray workers: one is killed, and the model stays the same, bit for bit."""

from pathlib import Path

import pytest
from network_runs import check_a_killed_worker_changes_no_bit
from own_loops import write_loop

from training.records import DatasetVersion
from training.storage.paths import Home

pytest.importorskip("accelerate", reason="install the extras by: make setup EXTRAS=all")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]


def test_a_killed_worker_changes_no_bit(home: Home, tmp_path: Path, digits_version: DatasetVersion) -> None:
    recipe = write_loop(tmp_path / "recipe")
    check_a_killed_worker_changes_no_bit(
        recipe, digits_version, home, calm=Home(tmp_path / "calm"), score=0.8
    )
