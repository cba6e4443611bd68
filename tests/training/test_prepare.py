"""Preparation: a version is a function of the source alone, and what breaks a rule is named before it is committed."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from small_runs import prepared, prepared_from

from training import dataset, prepare
from training.errors import DataError
from training.paths import Home
from training.records import DatasetVersion, SourceFiles
from training.settings import DataSettings
from training.sources.digits import Digits
from training.sources.folder import ImageFolder
from training.sources.parquet import ParquetImages

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
PARTS = (
    "train/cat/0.png",
    "train/cat/1.png",
    "train/dog/0.png",
    "train/dog/1.png",
    "test/cat/0.png",
    "test/dog/0.png",
)


def random_pixels(count: int, seed: int = 0, shape: tuple[int, ...] = (6, 6, 3)) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape)).astype(np.uint8)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of two classes with distinct 6x6 colour images in both splits."""
    for name, pixels in zip(PARTS, random_pixels(len(PARTS)), strict=True):
        file = tmp_path / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    return tmp_path / "images"


def write_rows(file: Path, pixels: Pixels, labels: list[str], **more: Any) -> Path:
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(pixels))
    pq.write_table(pa.table({"image": column, "label": labels, **more}), file)
    return file


def refused(home: Home, root: Path, **data: Any) -> str:
    """The reason why the images at `root` are refused; nothing may be left in the place of versions."""
    with pytest.raises(DataError) as caught:
        prepared(home, ImageFolder(root), "pets", data)
    assert [path for path in home.datasets.rglob("*") if path.name != "pets"] == []
    return str(caught.value)


def files_of(version: DatasetVersion) -> dict[str, bytes]:
    root = Path(version.path)
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*.parquet")}


def test_a_version_is_the_same_in_every_home(tmp_path: Path) -> None:
    one, two = (prepared(Home(tmp_path / name)) for name in ("one", "a much longer name"))
    assert one.path != two.path
    assert one.model_copy(update={"path": ""}) == two.model_copy(update={"path": ""})
    assert files_of(one) == files_of(two)
    assert {part.path for parts in one.parts.values() for part in parts} == files_of(one).keys()
    assert Path(one.path).name == one.fingerprint[:16]


def test_what_the_manifest_says_is_so(digits_version: DatasetVersion) -> None:
    for split in prepare.SPLITS:
        columns = dataset.open_columns(digits_version, split)
        assert len(columns) == digits_version.rows(split)
        counts = np.bincount(columns.labels, minlength=10)
        assert digits_version.label_counts[split] == tuple(counts)
    assert digits_version.rows("train") + digits_version.rows("test") == 1797
    # A share of 0.2 decided row by row: within four deviations.
    assert abs(digits_version.rows("test") / 1797 - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 1797)
    assert digits_version.bytes == sum(map(len, files_of(digits_version).values()))
    assert (digits_version.shape, digits_version.classes) == ((1, 8, 8), tuple("0123456789"))


def test_every_row_arrives_with_its_pixels_and_label(digits_version: DatasetVersion) -> None:
    source = Digits()
    batches = source.read(source.fetch(Path()), "", range(1797))
    rows = [row for batch in batches for row in batch.to_pylist()]
    expected = {row["where"]: (row["image"], row["label"]) for row in rows}
    found = {}
    for split in prepare.SPLITS:
        for table in dataset.read_parts(digits_version, split, ["image", "label", "where"]):
            found |= {row["where"]: (row["image"], str(row["label"])) for row in table.to_pylist()}
    assert len(found) == 1797
    assert found == expected


@pytest.mark.parametrize("channels", [1, 3])
def test_mean_and_deviation_are_numpys_over_the_train_split(home: Home, images: Path, channels: int) -> None:
    version = prepared(home, ImageFolder(images), "pets", {"channels": channels})
    train = np.asarray(dataset.open_columns(version, "train").images, np.float64) / 255
    assert train.shape == (4, channels, 6, 6)
    assert np.allclose(version.mean, train.mean(axis=(0, 2, 3)), rtol=1e-12)
    assert np.allclose(version.std, train.std(axis=(0, 2, 3)), rtol=1e-9)


def test_shards_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prepared(Home(tmp_path / "whole"))
    monkeypatch.setattr(prepare, "_SHARD_ROWS", 500)
    monkeypatch.setattr(prepare, "_BATCH_ROWS", 77)
    sharded = prepared(Home(tmp_path / "sharded"))
    assert len(sharded.parts["train"]) == 4
    assert (sharded.label_counts, sharded.mean, sharded.std) == (whole.label_counts, whole.mean, whole.std)
    for split in prepare.SPLITS:
        one, two = (dataset.open_columns(version, split) for version in (whole, sharded))
        assert np.array_equal(one.images, two.images)
        assert np.array_equal(one.labels, two.labels)
        assert np.array_equal(one.digests, two.digests)


def test_raw_shards_are_kept_and_not_written_again(home: Home) -> None:
    files, settings = Digits().fetch(home.sources), DataSettings()
    (shard,) = prepare.plan_shards(files, settings)
    first = prepare.write_raw(files, shard, settings, home.raw)
    stamp = Path(first.path).stat().st_mtime_ns
    assert prepare.write_raw(files, shard, settings, home.raw) == first
    assert Path(first.path).stat().st_mtime_ns == stamp
    assert (first.rows, sum(first.labels.values()), len(first.labels)) == (1797, 1797, 10)


def test_a_subset_is_fixed_and_spread_over_the_source(home: Home, tmp_path: Path) -> None:
    split = ["train"] * 900 + ["test"] * 300
    labels = ["cat", "dog"] * 600
    rows = write_rows(tmp_path / "rows.parquet", random_pixels(1200, shape=(4, 4, 1)), labels, split=split)
    version = prepared(home, ParquetImages(rows), "pets", {"max_train_rows": 100, "max_test_rows": 50})
    assert (version.rows("train"), version.rows("test")) == (100, 50)
    where = [
        int(name.rsplit(" ", 1)[1])
        for table in dataset.read_parts(version, "train", ["where"])
        for name in table["where"].to_pylist()
    ]
    assert where == sorted(set(where))
    assert min(where) < 100
    assert 800 <= max(where) < 900
    again = prepared(
        Home(tmp_path / "other"), ParquetImages(rows), "pets", {"max_train_rows": 100, "max_test_rows": 50}
    )
    assert files_of(again) == files_of(version)


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
        (smaller, "is 5x6 pixels with 3 channels, the others are 6x6 pixels with 3 channels"),
        (grey, "is 6x6 pixels with 1 channel, the others are 6x6 pixels with 3 channels"),
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
    assert f"{images}: none of the images can be read" in refused(home, images)


def test_only_the_first_bad_rows_are_shown(home: Home, images: Path) -> None:
    for number in range(10):
        junk(images / "train" / "cat" / "0.png")
        (images / "train" / "cat" / f"bad-{number}.jpg").write_bytes(f"junk {number}".encode())
    message = refused(home, images)
    assert message.startswith("11 of 16 rows")
    assert "and 6 more" in message


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
        [np.asarray(dataset.open_columns(version, split).images) for split in prepare.SPLITS]
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


def test_an_image_in_both_splits_is_refused_with_both_places(home: Home, images: Path) -> None:
    # Other bytes, the same pixels.
    Image.open(images / "train/dog/0.png").save(images / "test/dog/0.png", compress_level=0)
    message = refused(home, images)
    assert message.startswith("1 images stand in both the train and the test split")
    assert f"{images}/train/dog/0.png and {images}/test/dog/0.png" in message


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
    names = {
        "path": pa.string(),
        "label": pa.string(),
        "split": pa.string(),
        "size": pa.int64(),
        "sha256": pa.string(),
    }
    home.sources.mkdir()
    pq.write_table(
        pa.table({name: pa.array([], kind) for name, kind in names.items()}), home.sources / "listing.parquet"
    )
    return home.sources


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

    monkeypatch.setattr(prepare, "_check_version", stop)
    with pytest.raises(Stop):
        prepared(home)
    assert list((home.datasets / "digits").iterdir()) == []
