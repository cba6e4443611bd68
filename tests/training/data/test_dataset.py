"""A dataset version on disk: found if intact, refused if damaged, identified by its content."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damages import DAMAGES, emptied, missing, part_file, shortened
from pets import random_pixels, write_rows
from small_runs import prepared

from training.data import dataset
from training.data.dataset import find, fingerprint, is_validation, open_columns
from training.data.manifest import MANIFEST, read_manifest, read_parts
from training.data.sources import Source
from training.data.sources.digits import Digits
from training.data.sources.parquet import ParquetImages
from training.errors import DataError
from training.records import DatasetVersion
from training.settings.schema import DataSettings
from training.storage.paths import Home


def test_a_whole_version_is_found_wherever_it_lies(copy: DatasetVersion, home: Home) -> None:
    assert find(home, "digits", copy.fingerprint) == copy
    home.root.rename(home.root.with_name("moved"))
    moved = find(Home(home.root.with_name("moved")), "digits", copy.fingerprint)
    assert moved is not None
    assert moved.path.startswith(f"{home.root.parent}/moved/")
    assert len(open_columns(moved, "test")) == copy.rows("test")


def test_no_version_is_none(home: Home) -> None:
    assert find(home, "digits", "0" * 64) is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_makes_it_none_and_is_named(
    copy: DatasetVersion, home: Home, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    damage(part_file(copy))
    assert find(home, "digits", copy.fingerprint) is None
    assert f"{part_file(copy)}: missing or not the bytes" in caplog.text
    assert "prepared again from its source" in caplog.text


def test_swapped_parts_make_it_none(copy: DatasetVersion, home: Home) -> None:
    train, test = part_file(copy), Path(copy.path) / copy.parts["test"][0].path
    train.rename(train.with_name("aside"))
    test.rename(train)
    train.with_name("aside").rename(test)
    assert find(home, "digits", copy.fingerprint) is None


def test_a_part_too_many_makes_it_none(
    copy: DatasetVersion, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    stray = part_file(copy).with_name("part-99999.parquet")
    shutil.copy(part_file(copy), stray)
    assert find(home, "digits", copy.fingerprint) is None
    assert f"{stray}: not among the files that the manifest lists" in caplog.text
    stray.rename(stray.with_name(".hidden.parquet"))
    assert find(home, "digits", copy.fingerprint) == copy


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


@pytest.mark.parametrize(
    ("field", "value"),
    [("mean", [0.5]), ("classes", list("0123456798")), ("shape", [1, 4, 16]), ("source_origin", "elsewhere")],
)
def test_a_manifest_that_was_changed_makes_it_none(
    copy: DatasetVersion, home: Home, caplog: pytest.LogCaptureFixture, field: str, value: Any
) -> None:
    manifest = Path(copy.path) / MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {field: value}))
    assert find(home, "digits", copy.fingerprint) is None
    assert f"{manifest}: damaged" in caplog.text


def test_a_manifest_of_other_data_makes_it_none(copy: DatasetVersion, home: Home) -> None:
    manifest = Path(copy.path) / MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"fingerprint": "0" * 64}))
    assert find(home, "digits", copy.fingerprint) is None


def test_a_whole_version_under_another_identity_is_refused(copy: DatasetVersion) -> None:
    with pytest.raises(DataError, match="damaged, or of another dataset"):
        read_manifest(Path(copy.path), "0" * 64)


def test_a_manifest_with_another_content_is_refused(copy: DatasetVersion) -> None:
    file = Path(copy.path) / MANIFEST
    changed = json.loads(file.read_text()) | {"source_origin": "elsewhere"}
    file.write_text(json.dumps(changed))
    with pytest.raises(DataError, match="damaged, or of another dataset"):
        read_manifest(Path(copy.path), copy.fingerprint)


def test_swapped_parts_are_noticed(copy: DatasetVersion) -> None:
    train, test = part_file(copy), Path(copy.path) / copy.parts["test"][0].path
    shutil.copy(test, train)
    with pytest.raises(DataError, match="not the bytes that the manifest lists"):
        list(read_parts(copy, "train", ["label"]))


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
    "change",
    [
        {"path": "/x"},
        {"feed": "loader"},
        {"loader_processes": 1},
        {"loader_prefetch": 4},
        {"validation_share": 0.3},
    ],
)
def test_other_settings_do_not(change: dict[str, Any]) -> None:
    assert fingerprint(FILES, DataSettings(**change)) == fingerprint(FILES, DataSettings())


def test_the_test_share_does_not_count_where_the_source_divides(tmp_path: Path, home: Home) -> None:
    def of(source: Source, **data: Any) -> str:
        return fingerprint(source.fetch(home.sources), DataSettings.model_validate(data))

    pixels, labels = random_pixels(8), ["cat", "dog"] * 4
    splits = ["train", "train", "test", "test"] * 2
    divided = ParquetImages(write_rows(tmp_path / "divided.parquet", pixels, labels, split=splits))
    undivided = ParquetImages(write_rows(tmp_path / "rows.parquet", pixels, labels))
    assert of(divided, test_share=0.5) == of(divided)
    assert of(divided, max_train_rows=2) != of(divided)
    assert of(undivided, test_share=0.5) != of(undivided)


def test_content_changes_the_fingerprint_and_places_do_not() -> None:
    def of(**change: Any) -> str:
        return fingerprint(FILES.model_copy(update=change), DataSettings())

    same = {"root": "/elsewhere", "origin": "a mirror", "files": 9, "bytes": 9}
    assert of(**same) == of()
    assert len({of(), of(digest="0" * 64), of(classes=tuple("abc")), of(classes=FILES.classes[::-1])}) == 4


@pytest.mark.parametrize(
    "name",
    [
        "data.dataset",
        "data.images.decoding",
        "data.manifest",
        "data.preparation.prepare",
        "data.sources.digits",
        "data.sources.installed",
    ],
)
def test_the_code_of_the_transform_changes_the_fingerprint(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = fingerprint(FILES, DataSettings())
    digests = dataset.code_digests

    def edited(*roots: str) -> dict[str, str]:
        module_digests = digests(*roots)
        assert f"training.{name}" in module_digests
        return module_digests | {f"training.{name}": "edited"}

    monkeypatch.setattr(dataset, "code_digests", edited)
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
