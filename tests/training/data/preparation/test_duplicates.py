"""Duplicate images: refused with a list of all of them, or left out on request and recorded in the manifest."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pets import random_pixels
from PIL import Image
from small_runs import prepared

from training.data import dataset
from training.data.preparation.bad_rows import check_bad_rows
from training.data.preparation.shards import ShardOutcome
from training.data.sources.folder import ImageFolder
from training.errors import DataError
from training.records import DatasetVersion
from training.storage.paths import Home


def refused(home: Home, root: Path) -> str:
    with pytest.raises(DataError) as caught:
        prepared(home, ImageFolder(root), "pets")
    return str(caught.value)


def listed(home: Home) -> list[dict[str, str]]:
    """Rows of the only list of refused rows in `home`."""
    (file,) = (home.root / "refused").rglob("*.csv")
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def leak(images: Path) -> None:
    """Put a training image into the test split, with equal pixels but other file content."""
    Image.open(images / "train/dog/0.png").save(images / "test/dog/copy.png", compress_level=0)


def relabel(images: Path) -> None:
    """Put an image of class dog into class cat as well."""
    (images / "train/cat/copy.png").write_bytes((images / "train/dog/1.png").read_bytes())


def test_an_image_in_both_splits_is_refused_with_both_places(home: Home, images: Path) -> None:
    leak(images)
    message = refused(home, images)
    assert "1 image is in more than one split" in message
    assert f"{images}/train/dog/0.png and {images}/test/dog/copy.png" in message
    assert "data.duplicates=drop" in message


def test_an_image_under_two_labels_is_refused_with_both_labels(home: Home, images: Path) -> None:
    relabel(images)
    message = refused(home, images)
    assert "1 image is in the data under two labels" in message
    assert f"{images}/train/cat/copy.png (cat) and {images}/train/dog/1.png (dog)" in message


def test_all_copies_are_listed_in_a_file(home: Home, images: Path) -> None:
    for number, pixels in enumerate(random_pixels(8, seed=5)):
        for split in ("train", "test"):
            Image.fromarray(pixels).save(images / f"{split}/cat/more-{number}.png")
    relabel(images)
    message = refused(home, images)
    assert "8 images are in more than one split" in message
    assert "and 3 more" in message
    rows = listed(home)
    assert str(home.root / "refused") in message
    assert len(rows) == 8 * 2 + 2
    assert {row["where"] for row in rows if row["rule"] == "under two labels"} == {
        f"{images}/train/cat/copy.png",
        f"{images}/train/dog/1.png",
    }


@pytest.mark.parametrize(
    ("spoil", "gone"),
    [(leak, ["test/dog/copy.png"]), (relabel, ["train/cat/copy.png", "train/dog/1.png"])],
    ids=["leak", "label"],
)
def test_dropped_copies_leave_the_dataset_of_the_other_rows(
    home: Home, images: Path, spoil: Callable[[Path], None], gone: list[str]
) -> None:
    spoil(images)
    version = prepared(home, ImageFolder(images), "pets", {"duplicates": "drop"})
    assert sorted(reason.partition(":")[0] for reason in version.dropped) == sorted(
        str(images / name) for name in gone
    )
    for name in gone:
        (images / name).unlink()
    clean = prepared(home, ImageFolder(images), "clean")
    assert rows_of(version) == rows_of(clean)
    assert version.label_counts == clean.label_counts
    assert (version.mean, version.std) == (clean.mean, clean.std)
    assert dataset.find(home, "pets", version.fingerprint) == version  # the manifest matches the files


def rows_of(version: DatasetVersion) -> list[Any]:
    """Images and labels of each split, sorted, because the order depends on the number of source rows."""
    columns = (dataset.open_columns(version, split) for split in ("train", "test"))
    return [
        sorted(zip(np.asarray(split_columns.inputs).tolist(), split_columns.targets.tolist(), strict=True))
        for split_columns in columns
    ]


def test_the_list_goes_once_the_same_data_are_accepted(home: Home, images: Path) -> None:
    version = prepared(home, ImageFolder(images), "pets")
    listing = home.refused_rows("pets", version.fingerprint)
    listing.parent.mkdir(parents=True)
    listing.write_text("of an earlier attempt")
    shutil.rmtree(version.path)
    prepared(home, ImageFolder(images), "pets")
    assert not listing.exists()


def outcome(*bad: str, kept: int = 0) -> ShardOutcome:
    return ShardOutcome(
        index=0, parts={}, label_counts={"train": (kept,), "test": (0,)}, sums=(0,), squares=(0,), bad=bad
    )


def test_one_bad_row_is_spoken_of_in_the_singular() -> None:
    with pytest.raises(
        DataError, match=r"^1 of 1 row can't be used:\n  a: bad\nRepair or remove it, or leave"
    ):
        check_bad_rows([outcome("a: bad")], 0.0, None)


def test_many_bad_rows_are_all_listed_in_a_file(tmp_path: Path) -> None:
    bad = [f"{number}.png: is 5x5 pixels" for number in range(40)]
    listing = tmp_path / "list.csv"
    with pytest.raises(DataError, match=rf"and 35 more, all listed in {listing}"):
        check_bad_rows([outcome(*bad[:20]), outcome(*bad[20:], kept=100)], 0.1, listing)
    with listing.open(newline="", encoding="utf-8") as stream:
        assert [row["row and reason"] for row in csv.DictReader(stream)] == bad
