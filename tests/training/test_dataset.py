"""A dataset version on disk: found when it is whole, refused when it is damaged, named by its content."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from small_runs import prepared

from training import dataset
from training.dataset import MANIFEST, find, fingerprint, is_validation, open_columns, read_parts
from training.errors import DataError
from training.paths import Home
from training.records import DatasetVersion
from training.settings import DataSettings
from training.sources.digits import Digits


@pytest.fixture
def copy(digits_version: DatasetVersion, home: Home) -> DatasetVersion:
    """The digits in this test's own home."""
    place = home.dataset("digits", digits_version.fingerprint)
    shutil.copytree(digits_version.path, place, ignore=shutil.ignore_patterns(".columns*"))
    return digits_version.model_copy(update={"path": str(place)})


def part_file(version: DatasetVersion) -> Path:
    return Path(version.path) / version.parts["train"][0].path


def missing(file: Path) -> None:
    file.unlink()


def shortened(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_whole_version_is_found_wherever_it_lies(copy: DatasetVersion, home: Home) -> None:
    assert find(home, "digits", copy.fingerprint) == copy
    home.root.rename(home.root.with_name("moved"))
    moved = find(Home(home.root.with_name("moved")), "digits", copy.fingerprint)
    assert moved is not None
    assert moved.path.startswith(f"{home.root.parent}/moved/")
    assert len(open_columns(moved, "test")) == copy.rows("test")


def test_no_version_is_none(home: Home) -> None:
    assert find(home, "digits", "0" * 64) is None


@pytest.mark.parametrize("damage", [missing, shortened, emptied])
def test_a_missing_or_shortened_part_makes_it_none(
    copy: DatasetVersion, home: Home, damage: Callable[[Path], None]
) -> None:
    damage(part_file(copy))
    assert find(home, "digits", copy.fingerprint) is None


def not_text(file: Path) -> None:
    file.write_bytes(b"\xff" + file.read_bytes())


def a_list(file: Path) -> None:
    file.write_text("[1]")


@pytest.mark.parametrize("damage", [missing, shortened, emptied, not_text, a_list])
def test_a_damaged_manifest_makes_it_none(
    copy: DatasetVersion, home: Home, damage: Callable[[Path], None]
) -> None:
    damage(Path(copy.path) / MANIFEST)
    assert find(home, "digits", copy.fingerprint) is None


def test_a_manifest_of_other_data_makes_it_none(copy: DatasetVersion, home: Home) -> None:
    manifest = Path(copy.path) / MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"fingerprint": "0" * 64}))
    assert find(home, "digits", copy.fingerprint) is None


@pytest.mark.parametrize("damage", [missing, shortened, emptied, flipped])
def test_a_damaged_part_is_named_and_nothing_is_unpacked(
    copy: DatasetVersion, damage: Callable[[Path], None]
) -> None:
    damage(part_file(copy))
    for _ in range(2):
        with pytest.raises(DataError, match=str(part_file(copy))):
            open_columns(copy, "train")
    assert not list(Path(copy.path).glob(".columns-train*/"))
    assert len(open_columns(copy, "test")) == copy.rows("test")


def test_swapped_parts_are_noticed(copy: DatasetVersion) -> None:
    train, test = part_file(copy), Path(copy.path) / copy.parts["test"][0].path
    shutil.copy(test, train)
    with pytest.raises(DataError, match="not the bytes that the manifest lists"):
        list(read_parts(copy, "train", ["label"]))


def test_columns_are_the_parts_and_are_unpacked_once(copy: DatasetVersion) -> None:
    columns = open_columns(copy, "train")
    (table,) = read_parts(copy, "train", ["image", "label", "digest"])
    assert columns.images.shape == (copy.rows("train"), 1, 8, 8)
    assert columns.images.dtype == np.uint8
    assert columns.images.tobytes() == b"".join(table["image"].to_pylist())
    assert columns.labels.tolist() == table["label"].to_pylist()
    assert columns.labels.dtype == np.int64
    assert columns.digests.tolist() == [
        int.from_bytes(digest[:8], "little") for digest in table["digest"].to_pylist()
    ]
    shutil.rmtree(Path(copy.path) / "train")
    assert np.array_equal(open_columns(copy, "train").images, columns.images)


def test_columns_can_not_be_written(copy: DatasetVersion) -> None:
    with pytest.raises(ValueError, match="read-only"):
        open_columns(copy, "train").images[0] = 0


def test_several_chunks_are_one_array(digits_version: DatasetVersion) -> None:
    (table,) = read_parts(digits_version, "train", ["image"])
    whole = dataset.binary_to_numpy(table["image"], np.uint8)
    pieces = pa.concat_tables([table.slice(0, 10), table.slice(10, 5), table.slice(15)])["image"]
    assert pieces.num_chunks >= 3
    assert np.array_equal(dataset.binary_to_numpy(pieces, np.uint8), whole)
    assert np.array_equal(dataset.binary_to_numpy(table.slice(7, 3)["image"], np.uint8), whole[7:10])


FILES = Digits().fetch(Path())


@pytest.mark.parametrize(
    "change",
    [
        {"image_size": 16},
        {"channels": 3},
        {"max_train_rows": 5},
        {"max_test_rows": 5},
        {"test_share": 0.1},
        {"max_dropped_share": 0.1},
    ],
)
def test_settings_of_the_transform_change_the_fingerprint(change: dict[str, Any]) -> None:
    assert fingerprint(FILES, DataSettings(**change)) != fingerprint(FILES, DataSettings())


@pytest.mark.parametrize(
    "change", [{"path": "/x"}, {"feed": "loader"}, {"loader_processes": 1}, {"validation_share": 0.3}]
)
def test_other_settings_do_not(change: dict[str, Any]) -> None:
    assert fingerprint(FILES, DataSettings(**change)) == fingerprint(FILES, DataSettings())


def test_content_changes_the_fingerprint_and_places_do_not() -> None:
    def of(**change: Any) -> str:
        return fingerprint(FILES.model_copy(update=change), DataSettings())

    same = {"root": "/elsewhere", "origin": "a mirror", "files": 9, "bytes": 9}
    assert of(**same) == of()
    assert len({of(), of(digest="0" * 64), of(classes=tuple("abc")), of(classes=FILES.classes[::-1])}) == 4


@pytest.mark.parametrize("name", ["dataset.py", "images.py", "order.py", "prepare.py", "sources/idx.py"])
def test_the_code_of_the_transform_changes_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = fingerprint(FILES, DataSettings())
    shutil.copytree(Path(dataset.__file__).parent, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(dataset, "__file__", str(tmp_path / "dataset.py"))
    assert fingerprint(FILES, DataSettings()) == before
    with (tmp_path / name).open("a") as out:
        out.write("# edited\n")
    assert fingerprint(FILES, DataSettings()) != before


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.99])
def test_validation_takes_its_share(share: float) -> None:
    digests = np.random.default_rng(0).integers(0, 2**64, 50_000, dtype=np.uint64)
    kept_back = is_validation(digests, share)
    assert abs(kept_back.mean() - share) < 4 * np.sqrt(share * (1 - share) / 50_000)


def test_a_larger_share_keeps_what_a_smaller_one_kept_back() -> None:
    digests = np.random.default_rng(1).integers(0, 2**64, 5_000, dtype=np.uint64)
    assert not (is_validation(digests, 0.1) & ~is_validation(digests, 0.2)).any()


def test_validation_and_test_are_chosen_independently(digits_version: DatasetVersion) -> None:
    shares = [
        is_validation(open_columns(digits_version, split).digests, 0.5).mean() for split in ("train", "test")
    ]
    assert abs(shares[0] - 0.5) < 4 * np.sqrt(0.25 / digits_version.rows("train"))
    assert abs(shares[1] - 0.5) < 4 * np.sqrt(0.25 / digits_version.rows("test"))


def test_a_made_version_is_found(home: Home) -> None:
    version = prepared(home)
    assert find(home, "digits", version.fingerprint) == version
