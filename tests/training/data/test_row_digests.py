"""Rows of one dataset version are looked up in another version by digest."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from small_runs import prepared

from training.data.row_digests import known_rows, row_digests, rows_among
from training.data.sources.folder import ImageFolder
from training.errors import DataError
from training.records import DatasetVersion
from training.storage.paths import Home


def version_of(folder: Path, home: Path, **data: object) -> DatasetVersion:
    return prepared(Home(home), ImageFolder(str(folder)), "pets", data=dict(data))


def test_test_rows_are_no_training_rows_of_their_own_version(images: Path, tmp_path: Path) -> None:
    version = version_of(images, tmp_path / "home")
    assert not rows_among(version, "test", known_rows(version, "train")).any()
    assert rows_among(version, "test", known_rows(version, "test")).all()
    assert len(row_digests(version, "test")) == version.rows("test")


def test_rows_are_found_whatever_the_image_size(images: Path, tmp_path: Path) -> None:
    small, large = (version_of(images, tmp_path / str(size), image_size=size) for size in (4, 9))
    for split in ("train", "test"):
        assert np.array_equal(row_digests(small, split), row_digests(large, split))
    assert rows_among(small, "train", known_rows(large, "train")).all()


def test_a_file_that_moved_from_train_to_test_is_found_under_another_name(
    images: Path, tmp_path: Path
) -> None:
    before = known_rows(version_of(images, tmp_path / "before"), "train")
    moved = sorted((images / "train").rglob("*.png"))[0]
    moved.rename(images / "test" / moved.parent.name / "renamed.png")
    after = version_of(images, tmp_path / "after")
    assert rows_among(after, "test", before).sum() == 1


def test_a_file_that_was_stored_in_another_format_is_found_by_its_pixels(
    images: Path, tmp_path: Path
) -> None:
    before = known_rows(version_of(images, tmp_path / "before"), "train")
    for file in (images / "train").rglob("*.png"):
        Image.open(file).save(file.with_suffix(".bmp"))
        file.unlink()
    after = version_of(images, tmp_path / "after")
    assert rows_among(after, "train", before).all()


def test_a_version_without_digests_of_the_source_is_known_by_pixels(images: Path, tmp_path: Path) -> None:
    version = version_of(images, tmp_path / "home")
    both = known_rows(version, "train")
    for part in version.parts["train"]:
        path = Path(version.path) / part.path
        pq.write_table(pq.read_table(path).drop_columns(["source"]), path)
    assert set(known_rows(version, "train").tolist()) < set(both.tolist())
    assert np.array_equal(known_rows(version, "train"), np.unique(row_digests(version, "train")))


def test_a_part_that_can_not_be_read_is_named(images: Path, tmp_path: Path) -> None:
    version = version_of(images, tmp_path / "home")
    path = Path(version.path) / version.parts["train"][0].path
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match=str(path)):
        known_rows(version, "train")
