"""Preparation: the dataset version depends on nothing but the source."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pets import random_pixels, write_rows
from PIL import Image
from small_runs import prepared

from training.data import dataset
from training.data.manifest import read_parts
from training.data.preparation import prepare, shards
from training.data.preparation.raw_rows import raw_batches
from training.data.sample_order import Permutation, Rows
from training.data.sources.digits import Digits
from training.data.sources.folder import ImageFolder
from training.data.sources.parquet import ParquetImages
from training.errors import DataError
from training.records import DatasetVersion
from training.settings.schema import DataSettings
from training.storage.paths import Home


def files_of(version: DatasetVersion) -> dict[str, bytes]:
    root = Path(version.path)
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*.parquet")}


def test_a_version_is_the_same_in_every_home(tmp_path: Path) -> None:
    first, second = (prepared(Home(tmp_path / name)) for name in ("one", "a much longer name"))
    assert first.path != second.path
    assert first.model_copy(update={"path": ""}) == second.model_copy(update={"path": ""})
    assert files_of(first) == files_of(second)
    assert {part.path for parts in first.parts.values() for part in parts} == files_of(first).keys()
    assert Path(first.path).name == first.fingerprint[:16]


def test_what_the_manifest_says_is_so(digits_version: DatasetVersion) -> None:
    for split in prepare.SPLITS:
        columns = dataset.open_columns(digits_version, split)
        assert len(columns) == digits_version.rows(split)
        counts = np.bincount(columns.targets, minlength=10)
        assert digits_version.label_counts[split] == tuple(counts)
    assert digits_version.rows("train") + digits_version.rows("test") == 1797
    # Each row is a test row with probability 0.2: within four standard deviations.
    assert abs(digits_version.rows("test") / 1797 - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 1797)
    assert digits_version.bytes == sum(map(len, files_of(digits_version).values()))
    assert (digits_version.shape, digits_version.classes) == ((1, 8, 8), tuple("0123456789"))


def test_every_row_arrives_with_its_pixels_and_label(digits_version: DatasetVersion) -> None:
    source = Digits()
    batches = source.read(source.fetch(Path()), "", range(1797))
    rows = [row for batch in batches for row in batch.to_pylist()]
    expected = {row["where"]: (row["image"], row["label"]) for row in rows}
    prepared_rows = {}
    for split in prepare.SPLITS:
        for table in read_parts(digits_version, split, ["image", "label", "where"]):
            prepared_rows |= {row["where"]: (row["image"], str(row["label"])) for row in table.to_pylist()}
    assert len(prepared_rows) == 1797
    assert prepared_rows == expected


@pytest.mark.parametrize("channels", [1, 3])
def test_mean_and_deviation_are_numpys_over_the_train_split(home: Home, images: Path, channels: int) -> None:
    version = prepared(home, ImageFolder(images), "pets", {"channels": channels})
    train = np.asarray(dataset.open_columns(version, "train").inputs, np.float64) / 255
    assert train.shape == (4, channels, 6, 6)
    assert np.allclose(version.mean, train.mean(axis=(0, 2, 3)), rtol=1e-12)
    assert np.allclose(version.std, train.std(axis=(0, 2, 3)), rtol=1e-9)


def test_shards_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prepared(Home(tmp_path / "whole"))
    monkeypatch.setattr(prepare, "_SHARD_ROWS", 500)
    monkeypatch.setattr(shards, "_BATCH_ROWS", 77)
    sharded = prepared(Home(tmp_path / "sharded"))
    assert len(sharded.parts["train"]) == 4
    assert (sharded.label_counts, sharded.mean, sharded.std) == (whole.label_counts, whole.mean, whole.std)
    for split in prepare.SPLITS:
        whole_columns, sharded_columns = (
            dataset.open_columns(version, split) for version in (whole, sharded)
        )
        assert np.array_equal(whole_columns.inputs, sharded_columns.inputs)
        assert np.array_equal(whole_columns.targets, sharded_columns.targets)
        assert np.array_equal(whole_columns.digests, sharded_columns.digests)


def test_raw_shards_are_kept_and_not_written_again(home: Home) -> None:
    files, settings = Digits().fetch(home.sources), DataSettings()
    (shard,) = prepare.plan_shards(files, settings)
    first = prepare.write_raw(files, shard, settings, home.raw)
    stamp = Path(first.path).stat().st_mtime_ns
    assert prepare.write_raw(files, shard, settings, home.raw) == first
    assert Path(first.path).stat().st_mtime_ns == stamp
    assert (first.rows, sum(first.labels.values()), len(first.labels)) == (1797, 1797, 10)


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("suffix", [".parquet", ".sha256"])
@pytest.mark.parametrize("damage", [flipped, Path.unlink, lambda file: file.write_bytes(b"")])
def test_a_raw_shard_that_was_changed_is_written_again(
    home: Home, suffix: str, damage: Callable[[Path], None]
) -> None:
    files, settings = Digits().fetch(home.sources), DataSettings()
    (shard,) = prepare.plan_shards(files, settings)
    first = prepare.write_raw(files, shard, settings, home.raw)
    whole = {file.name: file.read_bytes() for file in home.raw.iterdir()}
    damage(Path(first.path).with_suffix(suffix))
    assert prepare.write_raw(files, shard, settings, home.raw) == first
    assert {file.name: file.read_bytes() for file in home.raw.iterdir()} == whole


def test_a_raw_shard_that_is_changed_while_it_is_needed_is_named(home: Home) -> None:
    files, settings = Digits().fetch(home.sources), DataSettings()
    (shard,) = prepare.plan_shards(files, settings)
    raw = prepare.write_raw(files, shard, settings, home.raw)
    assert sum(len(batch) for batch in raw_batches(raw.path)) == 1797
    content = bytearray(Path(raw.path).read_bytes())
    content[1000] ^= 1
    Path(raw.path).write_bytes(content)
    with pytest.raises(
        DataError, match=rf"{raw.path}: damaged since it was written.*Run the same command again"
    ):
        list(raw_batches(raw.path))


def test_a_subset_is_fixed_and_spread_over_the_source(home: Home, tmp_path: Path) -> None:
    split = ["train"] * 900 + ["test"] * 300
    labels = ["cat", "dog"] * 600
    rows = write_rows(tmp_path / "rows.parquet", random_pixels(1200, shape=(4, 4, 1)), labels, split=split)
    version = prepared(home, ParquetImages(rows), "pets", {"max_train_rows": 100, "max_test_rows": 50})
    assert (version.rows("train"), version.rows("test")) == (100, 50)
    where = [
        int(name.rsplit(" ", 1)[1])
        for table in read_parts(version, "train", ["where"])
        for name in table["where"].to_pylist()
    ]
    assert where == sorted(set(where))
    assert min(where) < 100
    assert 800 <= max(where) < 900
    again = prepared(
        Home(tmp_path / "other"), ParquetImages(rows), "pets", {"max_train_rows": 100, "max_test_rows": 50}
    )
    assert files_of(again) == files_of(version)


@pytest.mark.parametrize(
    ("limits", "rows"),
    [
        ({"max_train_rows": 240}, (240, 60)),
        ({"max_test_rows": 60}, (240, 60)),
        ({"max_train_rows": 240, "max_test_rows": 20}, (80, 20)),
        ({"max_train_rows": 40, "max_test_rows": 500}, (40, 10)),
        ({"max_train_rows": 5000, "max_test_rows": 5000}, (960, 240)),
    ],
)
def test_both_limits_hold_when_the_content_divides_the_rows(
    home: Home, tmp_path: Path, limits: dict[str, int], rows: tuple[int, int]
) -> None:
    """Each row is a test row with a chance of 0.2, so the numbers deviate by at most 4 standard deviations here."""
    file = write_rows(tmp_path / "rows.parquet", random_pixels(1200, shape=(4, 4, 1)), ["cat", "dog"] * 600)
    version = prepared(home, ParquetImages(file), "pets", limits)
    counts = (version.rows("train"), version.rows("test"))
    assert sum(counts) == sum(rows)
    assert abs(counts[0] - rows[0]) <= 4 * math.sqrt(sum(rows) * 0.2 * 0.8)


def test_a_limit_of_test_rows_has_no_effect_without_test_rows(home: Home) -> None:
    files = Digits().fetch(home.sources)
    settings = DataSettings(max_train_rows=100, max_test_rows=50, test_share=0)
    assert [(shard.start, shard.stop) for shard in prepare.plan_shards(files, settings)] == [(0, 100)]


def test_copies_of_an_image_stay_together(home: Home, tmp_path: Path) -> None:
    pixels = np.concatenate([random_pixels(200, shape=(4, 4, 1))] * 3)
    rows = write_rows(tmp_path / "rows.parquet", pixels, ["cat", "dog"] * 300)
    version = prepared(home, ParquetImages(rows), "pets")
    splits = [dataset.open_columns(version, split).digests for split in prepare.SPLITS]
    assert not set(splits[0]) & set(splits[1])
    assert len(splits[0]) + len(splits[1]) == 600
    assert (np.unique(splits[0], return_counts=True)[1] == 3).all()
    kept_back = dataset.is_validation(splits[0], 0.3)
    assert not set(splits[0][kept_back]) & set(splits[0][~kept_back])
    assert 0 < kept_back.sum() < len(kept_back)


def sided(digests: Any, split: str) -> list[str]:
    if split == "test":
        return ["test"] * len(digests)
    return np.where(dataset.is_validation(digests, 0.1), "kept back", "train").tolist()


def test_rows_keep_their_side_when_data_are_added(tmp_path: Path) -> None:
    few, more = random_pixels(400, shape=(4, 4, 1)), random_pixels(300, seed=1, shape=(4, 4, 1))
    sides = []
    for name, pixels in (("few", few), ("more", np.concatenate([more, few]))):
        rows = write_rows(tmp_path / f"{name}.parquet", pixels, ["cat", "dog"] * (len(pixels) // 2))
        version = prepared(Home(tmp_path / name), ParquetImages(rows), "pets")
        side: dict[int, str] = {}
        for split in prepare.SPLITS:
            digests = dataset.open_columns(version, split).digests
            side |= dict(zip(digests.tolist(), sided(digests, split), strict=True))
        sides.append(side)
    assert sides[0].items() <= sides[1].items()
    assert (len(sides[0]), len(sides[1])) == (400, 700)
    assert set(sides[0].values()) == {"train", "test", "kept back"}


def test_an_interrupted_commit_leaves_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    monkeypatch.setattr(prepare, "check_classes", stop)
    with pytest.raises(Stop):
        prepared(home)
    assert list((home.datasets / "digits").iterdir()) == []


def test_an_image_folder_is_not_left_sorted_by_class(home: Home, tmp_path: Path) -> None:
    """Otherwise a training that reads rows in stored order would see one class after the other."""
    pixels = random_pixels(120)
    for number, image in enumerate(pixels):
        file = tmp_path / "pets" / ("cat" if number < 60 else "dog") / f"{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
    labels = dataset.open_columns(
        prepared(home, ImageFolder(tmp_path / "pets"), "pets", {"test_share": 0.1}), "train"
    ).targets
    changes = int((np.diff(labels) != 0).sum())
    assert changes > len(labels) / 4


def test_a_subset_is_drawn_once_for_all_shards(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    class Counting(Permutation):
        def __call__(self, positions: Rows) -> Rows:
            drawn.append(len(positions))
            return super().__call__(positions)

    monkeypatch.setattr(prepare, "Permutation", Counting)
    monkeypatch.setattr(prepare, "_SHARD_ROWS", 100)
    prepare._subset.cache_clear()
    files = Digits().fetch(home.sources)
    settings = DataSettings(max_train_rows=960, max_test_rows=300)
    shards = prepare.plan_shards(files, settings)
    rows = [row for shard in shards for row in prepare.selected_rows(files, shard, settings)]
    assert len(shards) == 12
    assert drawn == [1200]
    assert rows == sorted(set(rows))
    prepare._subset.cache_clear()
