"""Dataset versions of images with a number to predict for each: their part files, statistics, copies and identity."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures_with_numbers import TARGET, ink_of, pixels_of, write_folder, write_parquet
from PIL import Image
from small_runs import prepared

from evergreen import ImageFolder, ParquetImages
from training.code_closure import code_digests
from training.data import versions
from training.data.columns import open_columns
from training.data.manifest import read_manifest, read_parts
from training.data.preparation import prepare, shards
from training.data.row_digests import known_rows, row_digests
from training.data.row_kinds import TARGET_MODULES
from training.data.sources.locate import with_numbers
from training.errors import DataError, SettingError
from training.records import DatasetVersion
from training.settings.schema import DataSettings
from training.storage.paths import Home

ROWS = 120


def version_of(home: Home, root: Path, **data: Any) -> DatasetVersion:
    return prepared(home, ImageFolder(root, target=TARGET), "scans", data, "regression")


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    root = write_folder(tmp_path_factory.mktemp("data") / "scans", ROWS)
    return version_of(Home(tmp_path_factory.mktemp("home")), root)


def test_each_image_keeps_its_number(scans: DatasetVersion) -> None:
    pixels = pixels_of(ROWS)
    expected = {picture.tobytes(): ink for picture, ink in zip(pixels, ink_of(pixels).tolist(), strict=True)}
    numbers = {}
    for split in prepare.SPLITS:
        for table in read_parts(scans, split, ["image", "label"]):
            assert table.schema.field("label").type == pa.float64()
            numbers |= dict(zip(table["image"].to_pylist(), table["label"].to_pylist(), strict=True))
        columns = open_columns(scans, split)
        assert columns.targets.dtype == np.float64
        assert [expected[image.tobytes()] for image in columns.inputs] == columns.targets.tolist()
    assert numbers == expected
    assert (scans.rows("train") > scans.rows("test") > 0) is True
    assert (scans.problem, scans.classes, scans.label_counts) == ("regression", (), {"train": (), "test": ()})
    assert (scans.shape, scans.has_images) == ((1, 8, 8), True)


def test_statistics_are_numpys_over_the_train_split(scans: DatasetVersion) -> None:
    columns = open_columns(scans, "train")
    assert scans.table is not None
    assert scans.table.target == TARGET
    assert scans.table.columns == ()
    assert scans.table.target_mean == pytest.approx(columns.targets.mean(), rel=1e-12)
    assert scans.table.target_std == pytest.approx(columns.targets.std(), rel=1e-9)
    pixels = columns.inputs.astype(np.float64) / 255
    assert np.allclose(scans.mean, pixels.mean(axis=(0, 2, 3)), rtol=1e-12)
    assert np.allclose(scans.std, pixels.std(axis=(0, 2, 3)), rtol=1e-9)
    assert read_manifest(Path(scans.path), scans.fingerprint) == scans


def test_shards_do_not_show(tmp_path: Path, scans: DatasetVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version in several shards has the rows, and the statistics, of a version in one shard."""
    root = write_folder(tmp_path / "scans", ROWS)
    monkeypatch.setattr(prepare, "_SHARD_ROWS", 50)
    monkeypatch.setattr(shards, "_BATCH_ROWS", 7)
    first, second = (version_of(Home(tmp_path / name), root) for name in ("one", "two"))
    assert len(first.parts["train"]) > 1
    assert first.parts == second.parts
    whole, cut = (
        pa.concat_tables(read_parts(version, "train", ["image", "label", "source"]))
        for version in (scans, first)
    )
    assert whole.equals(cut)
    assert (first.table, first.mean, first.std) == (scans.table, scans.mean, scans.std)


def test_images_in_parquet_make_the_same_rows(home: Home, tmp_path: Path, scans: DatasetVersion) -> None:
    source = with_numbers(ParquetImages(write_parquet(tmp_path / "scans.parquet", ROWS), label=TARGET))
    version = prepared(home, source, "scans", problem="regression")
    assert version.fingerprint != scans.fingerprint
    for split in prepare.SPLITS:
        # The same pixels, and the same image files, are the same rows, so a champion of one is compared on the other.
        assert np.array_equal(known_rows(version, split), known_rows(scans, split))
        assert sorted(row_digests(version, split)) == sorted(row_digests(scans, split))


def copy(root: Path, name: str, of: str, ink: str) -> None:
    """Store the image `of` again as `name`, with other bytes and equal pixels, and the number `ink`."""
    Image.open(root / of).save(root / name, compress_level=0)
    with (root / "metadata.csv").open("a") as table:
        table.write(f"{name},{ink},someone\n")


def test_an_image_with_two_numbers_is_refused_or_left_out(home: Home, tmp_path: Path) -> None:
    root = write_folder(tmp_path / "scans", ROWS)
    before = version_of(home, root)
    copy(root, "1/copy.png", "0/0000.png", "7.25")
    with pytest.raises(DataError, match="1 image is in the data under two labels") as caught:
        version_of(home, root)
    ink = float(ink_of(pixels_of(1))[0])
    assert f"{root}/0/0000.png ({ink:.10g}) and {root}/1/copy.png (7.25)" in str(caught.value)
    dropped = version_of(home, root, duplicates="drop")
    assert [row.partition(":")[0] for row in dropped.dropped] == [
        f"{root}/0/0000.png",
        f"{root}/1/copy.png",
    ]
    rows = sum(map(dropped.rows, prepare.SPLITS))
    assert rows == sum(map(before.rows, prepare.SPLITS)) - 1
    labels = np.concatenate([open_columns(dropped, split).targets for split in prepare.SPLITS])
    assert set(labels) == set(ink_of(pixels_of(ROWS))) - {ink}


def test_copies_with_one_number_stay_together(home: Home, tmp_path: Path) -> None:
    root = write_folder(tmp_path / "scans", ROWS)
    copy(root, "1/copy.png", "0/0000.png", repr(float(ink_of(pixels_of(1))[0])))
    version = version_of(home, root)
    assert sum(map(version.rows, prepare.SPLITS)) == ROWS + 1


def test_a_source_s_validation_rows_are_marked(home: Home, tmp_path: Path) -> None:
    """Each folder has other images: otherwise they would be copies of each other."""
    pixels = pixels_of(30)
    for start, split in ((0, "train"), (10, "val"), (20, "test")):
        lines = ["file_name,ink"]
        (tmp_path / "scans" / split).mkdir(parents=True)
        for number in range(start, start + 10):
            Image.fromarray(pixels[number]).save(tmp_path / "scans" / split / f"{number}.png")
            lines.append(f"{number}.png,{number}")
        (tmp_path / "scans" / split / "metadata.csv").write_text("\n".join(lines))
    version = version_of(home, tmp_path / "scans")
    columns = open_columns(version, "train")
    assert version.validation_rows == 10
    assert columns.validation is not None
    assert sorted(columns.targets[columns.validation]) == list(range(10, 20))
    assert sorted(open_columns(version, "test").targets) == list(range(20, 30))
    with pytest.raises(DataError, match=r"no train rows|no test rows"):
        version_of(home, tmp_path / "scans" / "train", test_share=1e-9)


def test_an_image_that_cannot_be_read_is_refused_by_name(home: Home, tmp_path: Path) -> None:
    root = write_folder(tmp_path / "scans", ROWS)
    (root / "0/0000.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"0/0000\.png: "):
        version_of(home, root)
    version = version_of(home, root, max_dropped_share=0.1)
    assert sum(map(version.rows, prepare.SPLITS)) == ROWS - 1
    assert len(version.dropped) == 1


def test_the_identity_covers_the_numbers_and_the_code(tmp_path: Path) -> None:
    files = ImageFolder(write_folder(tmp_path / "scans"), target=TARGET).fetch(tmp_path)
    known = versions.fingerprint(files, DataSettings(), "regression")
    assert (
        versions.fingerprint(files.model_copy(update={"target": "age"}), DataSettings(), "regression")
        != known
    )
    assert versions.fingerprint(files, DataSettings(image_size=4), "regression") != known
    modules = versions.transform_modules(files)
    assert {"training.data.sources.folder_targets", *TARGET_MODULES} <= set(modules)
    digests = code_digests(*modules)
    assert "training.data.sources.target_numbers" in digests
    assert "training.data.tables.preparation" not in digests


def test_a_problem_of_classes_refuses_numbers(tmp_path: Path) -> None:
    files = ImageFolder(write_folder(tmp_path / "scans"), target=TARGET).fetch(tmp_path)
    with pytest.raises(
        SettingError, match=r"a number for each image, in column 'ink'.* classification needs"
    ):
        versions.fingerprint(files, DataSettings(), "classification")


def test_a_manifest_of_classes_has_no_new_field(digits_version: DatasetVersion) -> None:
    """Versions of earlier releases stay byte for byte what they were."""
    content = json.loads((Path(digits_version.path) / "manifest.json").read_text())
    assert content["table"] is None
    assert "target" not in content
    assert pq.read_schema(Path(digits_version.path) / digits_version.parts["test"][0].path).field(
        "label"
    ).type == (pa.int32())


@pytest.mark.usefixtures("ray_session")
def test_ray_writes_the_same_bytes(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_SHARD_ROWS", 50)
    files = ImageFolder(write_folder(tmp_path / "scans", ROWS), target=TARGET).fetch(tmp_path)
    settings = DataSettings()
    made = []
    for with_ray in (False, True):
        folder = tmp_path / str(with_ray)
        raw = [
            prepare.write_raw(files, shard, settings, folder)
            for shard in prepare.plan_shards(files, settings)
        ]
        version_folder = home.dataset("scans", f"{with_ray}")
        made.append(
            versions.make_version(
                "scans", "0", files, raw, settings, version_folder, with_ray, problem="regression"
            )
        )
    assert len(made[0].parts["train"]) > 1
    assert made[0].model_copy(update={"path": ""}) == made[1].model_copy(update={"path": ""})


@pytest.mark.extended
@pytest.mark.usefixtures("ray_session")
def test_ray_reads_the_numbers(scans: DatasetVersion) -> None:
    rows = versions.ray_dataset(scans, "train").take_all()
    columns = open_columns(scans, "train")
    numbers = {row["image"].tobytes(): row["label"] for row in rows}
    assert {image.tobytes() for image in columns.inputs} == numbers.keys()
    assert [numbers[image.tobytes()] for image in columns.inputs] == columns.targets.tolist()
