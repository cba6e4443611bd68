"""Fixtures for tests of training."""

import shutil
from pathlib import Path

import pytest
from checkpoints import opened
from pets import PARTS, random_pixels
from PIL import Image

from training.checkpoints.checkpoint_log import CheckpointLog
from training.records import DatasetVersion
from training.storage.paths import Home


@pytest.fixture
def log(tmp_path: Path) -> CheckpointLog:
    """An empty checkpoint log."""
    return opened(tmp_path)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with both splits of two classes of 6x6 colour images, all different."""
    for name, pixels in zip(PARTS, random_pixels(len(PARTS)), strict=True):
        file = tmp_path / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    return tmp_path / "images"


@pytest.fixture
def copy(digits_version: DatasetVersion, home: Home) -> DatasetVersion:
    """A copy of the digits' dataset version in this test's home."""
    folder = home.dataset("digits", digits_version.fingerprint)
    shutil.copytree(digits_version.path, folder, ignore=shutil.ignore_patterns(".columns*"))
    return digits_version.model_copy(update={"path": str(folder)})
