"""What tests of training start from."""

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
    """A log without any checkpoint."""
    return opened(tmp_path)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of two classes with distinct 6x6 colour images in both splits."""
    for name, pixels in zip(PARTS, random_pixels(len(PARTS)), strict=True):
        file = tmp_path / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    return tmp_path / "images"


@pytest.fixture
def copy(digits_version: DatasetVersion, home: Home) -> DatasetVersion:
    """The digits in this test's own home."""
    place = home.dataset("digits", digits_version.fingerprint)
    shutil.copytree(digits_version.path, place, ignore=shutil.ignore_patterns(".columns*"))
    return digits_version.model_copy(update={"path": str(place)})
