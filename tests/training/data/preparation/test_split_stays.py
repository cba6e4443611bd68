"""Settings that change no image, only its pixels, leave each image in its split."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_runs import prepared

from training.data.differences import differences
from training.data.row_digests import part_tables
from training.data.sources.digits import Digits
from training.data.sources.folder import ImageFolder
from training.errors import DataError
from training.records import DatasetVersion
from training.storage.paths import Home


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """40 colour images of 12x10 pixels in two classes, of two file formats."""
    draw = np.random.default_rng(0)
    for row in range(40):
        file = tmp_path / "pictures" / ("cats", "dogs")[row % 2] / f"{row}.{('png', 'bmp')[row // 2 % 2]}"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (12, 10, 3), np.uint8)).save(file)
    return tmp_path / "pictures"


def names_in_test(version: DatasetVersion) -> set[str]:
    return {
        Path(where).stem
        for table in part_tables(version, "test", ["where"])
        for where in table["where"].to_pylist()
    }


@pytest.mark.parametrize(
    "data", [{"image_size": 6}, {"image_size": 30}, {"channels": 1}, {"channels": 1, "image_size": 4}]
)
def test_size_and_channels_leave_the_split(folder: Path, tmp_path: Path, data: dict[str, Any]) -> None:
    plain = prepared(Home(tmp_path / "plain"), ImageFolder(folder), "pictures")
    other = prepared(Home(tmp_path / "other"), ImageFolder(folder), "pictures", data=data)
    assert plain.shape != other.shape
    assert names_in_test(plain) == names_in_test(other)
    found = differences(plain, other)
    assert (found.added, found.removed, found.changed, found.kept) == (0, 0, 0, 40)


def test_the_size_of_raw_pixels_leaves_the_split(tmp_path: Path) -> None:
    plain = prepared(Home(tmp_path / "plain"))
    large = prepared(Home(tmp_path / "large"), Digits(), data={"image_size": 16})
    assert differences(plain, large).kept == plain.rows("train") + plain.rows("test")
    assert names_in_test(plain) == names_in_test(large)


def test_an_image_stored_in_another_format_stays_in_its_split(folder: Path, tmp_path: Path) -> None:
    before = prepared(Home(tmp_path / "before"), ImageFolder(folder), "pictures", data={"image_size": 6})
    for file in folder.rglob("*.bmp"):
        Image.open(file).save(file.with_suffix(".png"))
        file.unlink()
    after = prepared(Home(tmp_path / "after"), ImageFolder(folder), "pictures", data={"image_size": 6})
    assert names_in_test(before) == names_in_test(after)


def test_images_that_are_equal_after_resizing_are_copies_in_two_splits(tmp_path: Path) -> None:
    """They are different rows by their own pixels, and the same image for a model."""
    for number, split in enumerate(("train", "test")):
        for name in ("cats", "dogs"):
            file = tmp_path / "pictures" / split / name / "1.png"
            file.parent.mkdir(parents=True)
            size = (8, 8) if name == "dogs" or number else (16, 16)
            grey = 90 if name == "cats" else 10 + number
            Image.new("RGB", size, (grey, grey, grey)).save(file)
    with pytest.raises(DataError, match="1 image is in more than one split"):
        prepared(Home(tmp_path), ImageFolder(tmp_path / "pictures"), "pictures", data={"image_size": 4})
