"""A violation is reported with its file or row, and no dataset version is left behind."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pets import PARTS, Pixels, random_pixels, write_rows
from PIL import Image
from small_runs import prepared, prepared_from

from training.data import dataset
from training.data.preparation import prepare
from training.data.sources import folder
from training.data.sources.digits import Digits
from training.data.sources.folder import ImageFolder
from training.data.sources.parquet import ParquetImages
from training.errors import DataError
from training.settings.schema import DataSettings
from training.storage.paths import Home


def refused(home: Home, root: Path, **data: Any) -> str:
    """The error message that refuses the images at `root`; checks that no version or temporary file is left."""
    with pytest.raises(DataError) as caught:
        prepared(home, ImageFolder(root), "pets", data)
    assert [path for path in home.datasets.rglob("*") if path.name != "pets"] == []
    return str(caught.value)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])


def junk(file: Path) -> None:
    file.write_bytes(b"no image at all")


def smaller(file: Path) -> None:
    Image.fromarray(random_pixels(1, 9, (5, 6, 3))[0]).save(file)


def grey(file: Path) -> None:
    Image.fromarray(random_pixels(1, 9, (6, 6))[0]).save(file)


@pytest.mark.parametrize("name", ["train/dog/1.png", "test/cat/0.png"])
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (cut_short, "is not a readable image"),
        (junk, "is not a readable image"),
        (
            smaller,
            "is 5x6 pixels with 3 channels, the others are 6x6 pixels with 3 channels; data.image_size resizes all",
        ),
        (
            grey,
            "is 6x6 pixels with 1 channel, the others are 6x6 pixels with 3 channels; data.channels=1 or 3 converts",
        ),
    ],
)
def test_a_bad_image_is_refused_by_name(
    home: Home, images: Path, name: str, spoil: Callable[[Path], None], reason: str
) -> None:
    spoil(images / name)
    message = refused(home, images)
    assert f"{images / name}: {reason}" in message
    assert message.startswith("1 of 6 rows can't be used")
    assert "data.max_dropped_share" in message


def test_an_image_of_zero_bytes_is_refused_by_name(home: Home, images: Path, tmp_path: Path) -> None:
    whole = (images / PARTS[0]).read_bytes()
    table = pa.table({"image": [whole] * 3 + [b""], "label": ["cat", "dog"] * 2})
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet row 3: .*has zero bytes"):
        prepared(home, ParquetImages(tmp_path / "rows.parquet"), "pets")
    (images / PARTS[1]).write_bytes(b"")
    assert str(images / PARTS[1]) in refused(home, images)


def test_a_split_without_one_good_image_is_refused_by_name(home: Home, images: Path) -> None:
    for file in (images / "test").rglob("*.png"):
        junk(file)
    message = refused(home, images)
    assert message.startswith("2 of 6 rows can't be used")
    assert all(str(images / name) in message for name in PARTS if name.startswith("test"))


def test_no_good_image_at_all_is_refused(home: Home, images: Path) -> None:
    for file in images.rglob("*.png"):
        junk(file)
    message = refused(home, images)
    assert f"{images}: none of the images can be read" in message
    assert ".png: is not a readable image" in message


def test_images_of_16_bits_are_refused_with_file_and_remedy(home: Home, images: Path) -> None:
    deep = images / "train" / "dog" / "1.png"
    Image.fromarray(np.full((6, 6), 5000, np.uint16)).save(deep)
    for data in ({}, {"channels": 3}):
        message = refused(home, images, **data)
        assert f"{deep}: has colour mode I;16" in message
        assert "convert the image to 8 bits" in message


def test_only_the_first_bad_rows_are_shown(home: Home, images: Path) -> None:
    for number in range(10):
        junk(images / "train" / "cat" / "0.png")
        (images / "train" / "cat" / f"bad-{number}.jpg").write_bytes(f"junk {number}".encode())
    message = refused(home, images)
    assert message.startswith("11 of 16 rows")
    assert "and 6 more" in message


def encoded(pixels: Pixels, folder: Path) -> bytes:
    Image.fromarray(pixels[..., 0]).save(folder / "one.png")
    return (folder / "one.png").read_bytes()


def test_a_label_outside_of_the_classes_is_refused_by_row(home: Home, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.parquet", random_pixels(20), ["cat", "dog"] * 9 + ["cow", "dog"])
    files = ParquetImages(rows).fetch(home.sources)
    known = files.model_copy(update={"classes": ("cat", "dog")})
    with pytest.raises(DataError, match=f"{rows} row 18: label 'cow' is none of the classes cat, dog"):
        prepared_from(home, known, "pets", DataSettings(test_share=0.5))
    version = prepared_from(home, known, "pets", DataSettings(test_share=0.5, max_dropped_share=0.1))
    assert (len(version.dropped), version.rows("train") + version.rows("test")) == (1, 19)
    pixels = np.concatenate(
        [np.asarray(dataset.open_columns(version, split).inputs) for split in prepare.SPLITS]
    )
    left_out = random_pixels(20)[18].transpose(2, 0, 1)
    assert not (pixels == left_out).all(axis=(1, 2, 3)).any()


@pytest.mark.parametrize(
    ("split", "said"), [("test", "no test rows of class dog"), ("train", "no train rows of class dog")]
)
def test_a_class_without_rows_in_a_split_is_refused(
    home: Home, tmp_path: Path, split: str, said: str
) -> None:
    other = "train" if split == "test" else "test"
    splits = [split, other] * 10
    labels = ["cat", "dog", "cat", "cat"] * 5
    rows = write_rows(tmp_path / "rows.parquet", random_pixels(20), labels, split=splits)
    with pytest.raises(DataError, match=said):
        prepared(home, ParquetImages(rows), "pets")


def test_images_of_a_single_class_are_refused(home: Home, tmp_path: Path) -> None:
    """Every model would have an accuracy of 100 %, and become champion."""
    rows = write_rows(tmp_path / "rows.parquet", random_pixels(20), ["cat"] * 20)
    with pytest.raises(
        DataError, match="all images are of one class, cat; a classification needs at least 2"
    ):
        prepared(home, ParquetImages(rows), "pets")


def test_not_a_number_is_refused_by_row(home: Home, tmp_path: Path) -> None:
    pixels = random_pixels(20).astype(np.float32)
    pixels[7, 1, 1, 1] = np.nan
    rows = write_rows(tmp_path / "rows.parquet", pixels, ["cat", "dog"] * 10)
    with pytest.raises(DataError, match=r"rows\.parquet row 7: column 'image' .*"):
        prepared(home, ParquetImages(rows), "pets")
    assert not home.datasets.exists()


def test_no_rows_are_refused(home: Home) -> None:
    files = Digits().fetch(home.sources)
    nothing = files.model_copy(update={"kind": "folder", "root": str(empty_listing(home))})
    with pytest.raises(DataError, match="no rows"):
        prepare.plan_shards(nothing, DataSettings())


def empty_listing(home: Home) -> Path:
    home.sources.mkdir()
    folder._write_listing(home.sources / "listing.arrow", [])
    return home.sources


@pytest.mark.parametrize("bad", [1, 3])
def test_exactly_the_allowed_share_is_left_out_and_listed(
    home: Home, tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: int
) -> None:
    cells = [b"junk"] * bad + [
        encoded(pixels, tmp_path) for pixels in random_pixels(20 - bad, shape=(4, 4, 1))
    ]
    table = pa.table(
        {"image": cells, "label": ["cat", "dog"] * 10, "split": ["train", "train", "test", "test"] * 5}
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    source = ParquetImages(tmp_path / "rows.parquet")
    with caplog.at_level(logging.WARNING, "evergreen.prepare"):
        version = prepared(home, source, "pets", {"max_dropped_share": bad / 20})
    assert version.rows("train") + version.rows("test") == 20 - bad
    named = {row.partition(": ")[0] for row in version.dropped}
    assert named == {f"{tmp_path}/rows.parquet row {row}" for row in range(bad)}
    assert len(caplog.records) == len(version.dropped) == bad
    with pytest.raises(DataError, match=f"{bad} of 20 rows"):
        prepared(home, source, "pets", {"max_dropped_share": (bad - 0.01) / 20})
