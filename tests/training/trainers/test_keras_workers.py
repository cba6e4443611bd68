"""Keras on real Ray workers: one is killed, and the model stays the same, bit for bit."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from keras_runs import write_keras
from network_runs import check_a_killed_worker_changes_no_bit

from training.records import DatasetVersion
from training.storage.paths import Home

# An import would choose another backend of Keras.
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("keras") is None, reason="install the extras by: make setup EXTRAS=all"),
    pytest.mark.usefixtures("ray_session"),
]


def test_a_killed_worker_changes_no_bit(home: Home, tmp_path: Path, digits_version: DatasetVersion) -> None:
    recipe = write_keras(tmp_path / "recipe")
    trained = check_a_killed_worker_changes_no_bit(
        recipe, digits_version, home, calm=Home(tmp_path / "calm"), score=0.5
    )
    assert trained.reproducible
