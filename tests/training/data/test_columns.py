"""The memory-mapped columns of a dataset version: unpacked once, checked, and unpacked again after a change."""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damages import DAMAGES, flipped, part_file

from training.data import columns as unpacked
from training.data.dataset import open_columns
from training.data.manifest import read_parts
from training.errors import DataError, TransientError
from training.records import DatasetVersion


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_named_and_nothing_is_unpacked(
    copy: DatasetVersion, damage: Callable[[Path], None]
) -> None:
    damage(part_file(copy))
    for _ in range(2):
        with pytest.raises(DataError, match=str(part_file(copy))):
            open_columns(copy, "train")
    assert not list(Path(copy.path).glob(".columns-train*/"))
    assert len(open_columns(copy, "test")) == copy.rows("test")


def test_columns_are_the_parts_and_are_unpacked_once(copy: DatasetVersion) -> None:
    columns = open_columns(copy, "train")
    (table,) = read_parts(copy, "train", ["image", "label", "digest"])
    assert columns.inputs.shape == (copy.rows("train"), 1, 8, 8)
    assert columns.inputs.dtype == np.uint8
    assert columns.inputs.tobytes() == b"".join(table["image"].to_pylist())
    assert columns.targets.tolist() == table["label"].to_pylist()
    assert columns.targets.dtype == np.int64
    assert columns.digests.tolist() == [
        int.from_bytes(digest[:8], "little") for digest in table["digest"].to_pylist()
    ]
    shutil.rmtree(Path(copy.path) / "train")
    assert np.array_equal(open_columns(copy, "train").inputs, columns.inputs)


COLUMNS = ("inputs.npy", "targets.npy", "digests.npy", "pixels.npy", "checksums.json")


@pytest.mark.parametrize("block", [1, 7, 1024])
def test_selected_rows_are_on_disk_and_leave_no_file(
    copy: DatasetVersion, tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked, "_SELECTED_ROWS", block)
    (folder := tmp_path / "selected").mkdir()
    columns = open_columns(copy, "train")
    mask = np.arange(len(columns)) % 3 == 1
    chosen = columns.selected(mask, folder)
    assert np.array_equal(chosen.inputs, columns.inputs[mask])
    assert np.array_equal(chosen.targets, columns.targets[mask])
    assert np.array_equal(chosen.digests, columns.digests[mask])
    assert not chosen.inputs.flags.owndata  # a mapping of the file, not a copy in memory
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_columns_that_were_changed_are_unpacked_again(
    copy: DatasetVersion, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[Path], None]
) -> None:
    folder = Path(copy.path) / ".columns-train"
    first = open_columns(copy, "train")
    assert {file.name for file in folder.iterdir()} == set(COLUMNS)
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    images = np.array(first.inputs)
    damage(folder / name)
    again = open_columns(copy, "train")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == whole
    assert np.array_equal(again.inputs, images)
    assert f"{folder / name}: not what was written" in caplog.text or name == "checksums.json"
    assert {path.name for path in folder.parent.glob(".*")} == {folder.name, f"{folder.name}.lock"}


def test_columns_of_another_split_or_version_are_unpacked_again(copy: DatasetVersion) -> None:
    train, test = (np.array(open_columns(copy, split).targets) for split in ("train", "test"))
    places = [Path(copy.path) / f".columns-{split}" for split in ("train", "test")]
    places[0].rename(places[0].with_name("aside"))
    places[1].rename(places[0])
    places[0].with_name("aside").rename(places[1])
    assert np.array_equal(open_columns(copy, "train").targets, train)
    assert np.array_equal(open_columns(copy, "test").targets, test)


def test_columns_are_checked_block_by_block(copy: DatasetVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "_BLOCK", 1000)
    file = Path(copy.path) / ".columns-train" / "inputs.npy"
    open_columns(copy, "train")
    whole = file.read_bytes()
    noted = json.loads((file.parent / "checksums.json").read_text())["inputs.npy"]
    assert noted == [len(whole), *(zlib.crc32(whole[at : at + 1000]) for at in range(0, len(whole), 1000))]
    for position in (0, 999, 1000, len(whole) - 1):
        content = bytearray(whole)
        content[position] ^= 1
        file.write_bytes(content)
        open_columns(copy, "train")
        assert file.read_bytes() == whole


def test_changed_columns_of_a_damaged_version_are_not_used(copy: DatasetVersion) -> None:
    open_columns(copy, "train")
    flipped(Path(copy.path) / ".columns-train" / "targets.npy")
    flipped(part_file(copy))
    with pytest.raises(DataError, match=f"{part_file(copy)}.*prepared again"):
        open_columns(copy, "train")


def test_a_disk_that_damages_what_is_written_is_named(
    copy: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack = unpacked._unpack_again

    def unpack_badly(folder: Path, *rest: Any) -> None:
        unpack(folder, *rest)
        flipped(folder / "inputs.npy")

    monkeypatch.setattr(unpacked, "_unpack_again", unpack_badly)
    with pytest.raises(DataError, match=r"inputs\.npy: damaged again .*Check the disk"):
        open_columns(copy, "train")


def test_what_a_killed_process_left_half_unpacked_is_removed(copy: DatasetVersion) -> None:
    left = Path(copy.path) / "..columns-train.0123abcd.tmp"
    left.mkdir()
    (left / "inputs.npy").write_bytes(b"half")
    other = Path(copy.path) / "..columns-test.0123abcd.tmp"
    other.mkdir()
    open_columns(copy, "train")
    assert (left.exists(), other.exists()) == (False, True)


def _open_and_digest(version: str) -> str:
    images = open_columns(DatasetVersion.model_validate_json(version), "train").inputs
    return hashlib.sha256(np.ascontiguousarray(images)).hexdigest()


@pytest.mark.extended
def test_processes_that_find_damaged_columns_together_all_get_whole_ones(copy: DatasetVersion) -> None:
    wanted = _open_and_digest(copy.model_dump_json())
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        for name in COLUMNS:
            flipped(Path(copy.path) / ".columns-train" / name)
            assert set(pool.map(_open_and_digest, [copy.model_dump_json()] * 8)) == {wanted}


def test_columns_can_not_be_written(copy: DatasetVersion) -> None:
    with pytest.raises(ValueError, match="read-only"):
        open_columns(copy, "train").inputs[0] = 0


def test_a_worker_checks_the_images_that_it_reads_and_no_others(
    copy: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = np.array(open_columns(copy, "train").inputs)
    hashed: list[str] = []
    checksums = unpacked._checksums

    def counted(file: Path) -> list[int]:
        hashed.append(file.name)
        return checksums(file)

    monkeypatch.setattr(unpacked, "_checksums", counted)
    columns = open_columns(copy, "train", check_images=False)
    assert hashed == ["targets.npy", "digests.npy", "pixels.npy"]
    assert columns.unchecked is not None
    rows = np.array([5, 3, 5])
    assert np.array_equal(columns.read(rows), expected[rows])
    assert np.flatnonzero(~columns.unchecked).tolist() == [3, 5]


def test_an_image_that_was_damaged_is_unpacked_again_by_the_next_attempt(copy: DatasetVersion) -> None:
    expected = np.array(open_columns(copy, "train").inputs)
    file = Path(copy.path) / ".columns-train" / "inputs.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    columns = open_columns(copy, "train", check_images=False)
    last = len(columns) - 1
    assert np.array_equal(columns.read(np.array([0])), expected[:1])
    with pytest.raises(TransientError, match=f"inputs.npy: row {last} is not what was written"):
        columns.read(np.array([last]))
    again = open_columns(copy, "train", check_images=False)
    assert np.array_equal(again.read(np.array([last])), expected[last:])


def test_images_that_were_cut_short_are_unpacked_before_they_are_mapped(copy: DatasetVersion) -> None:
    open_columns(copy, "train")
    file = Path(copy.path) / ".columns-train" / "inputs.npy"
    size = file.stat().st_size
    os.truncate(file, size - 1)
    open_columns(copy, "train", check_images=False)
    assert file.stat().st_size == size
