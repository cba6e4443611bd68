"""Boosted trees' rows from Ray Data: workers get all rows once, in order, as the memory-mapped columns have them."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import ray.train
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem
from ray.data.preprocessors import OneHotEncoder, StandardScaler
from small_runs import prepared

from training.data.dataset import is_validation, open_columns
from training.data.preparation import prepare
from training.data.preparation.prepare import SPLITS
from training.data.preprocessing.preparation import make_preprocessed_version
from training.data.sample_order import checksum
from training.data.sources.table import Table
from training.errors import TransientError
from training.preprocessors import declared_steps
from training.records import DatasetVersion
from training.settings.schema import DataSettings
from training.storage.paths import Home
from training.trainers.boosting.ray_shards import (
    LEARN,
    VALIDATION,
    Shard,
    consecutive_shards,
    open_shard,
    ray_datasets,
)

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.extended]
SHARE = 0.25


def flats(folder: Path, rows: int) -> Table:
    """A table with numbers, some of them missing, a category, and a column `split`."""
    random = np.random.default_rng(0)
    area = random.normal(70, 20, rows)
    columns = {
        "area": pa.array(np.where(np.arange(rows) % 50 == 7, np.nan, area), from_pandas=True),
        "city": random.choice(["Bonn", "Ulm"], rows),
        "price": 1000 * area,
        "split": [("train", "train", "train", "val", "test")[row % 5] for row in range(rows)],
    }
    pyarrow.csv.write_csv(pa.table(columns), folder / "flats.csv")
    return Table(folder / "flats.csv", target="price", drop=["split"])


def preprocessed(plain: DatasetVersion, folder: Path) -> DatasetVersion:
    """The dataset version `plain` with preprocessors, at `folder`."""

    def copied(to: Path) -> DatasetVersion:
        return plain.model_copy(update={"path": str(shutil.copytree(plain.path, to))})

    steps = declared_steps("flats", [StandardScaler(["area"]), OneHotEncoder(["city"])])
    return make_preprocessed_version(steps, DataSettings(), folder, copied)


def shards_of(
    version: DatasetVersion, workers: int, patch: pytest.MonkeyPatch, files: FileSystem | None = None
) -> dict[str, list[Shard]]:
    """The shards of each dataset, as the workers of a training read them."""
    given = consecutive_shards().configure(ray_datasets(version, SHARE, files), workers, None, None)
    shards: dict[str, list[Shard]] = {LEARN: [], VALIDATION: []}
    for of_worker in given:
        patch.setattr(ray.train, "get_dataset_shard", of_worker.__getitem__)
        for name, opened in shards.items():
            moved: list[int] = []
            opened.append(open_shard(name, version, moved.append))
            assert (sum(moved) > 0) == (opened[-1].rows > 0)
    return shards


@pytest.mark.parametrize("kind", ["share of validation rows", "marked validation rows", "preprocessors"])
def test_workers_get_consecutive_rows_of_all_part_files(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(prepare, "_TABLE_SHARD_ROWS", 130)
    source = flats(tmp_path, 1000)
    if kind == "marked validation rows":
        source = replace(source, drop=(), split="split")
    version = prepared(home, source, "flats", problem="regression")
    if kind == "preprocessors":
        version = preprocessed(version, tmp_path / "scaled")
    assert len(version.parts["train"]) > 3
    columns = open_columns(version, "train")
    kept_back = is_validation(columns.digests, SHARE) if columns.validation is None else columns.validation
    shards = shards_of(version, 3, monkeypatch)
    for name, rows in ((LEARN, ~kept_back), (VALIDATION, kept_back)):
        counts = [shard.rows for shard in shards[name]]
        assert max(counts) - min(counts) <= 1
        assert sum(shard.checksum for shard in shards[name]) == checksum(columns.digests[rows].view(np.int64))
        inputs, targets = (
            np.concatenate(arrays) for arrays in zip(*(shard.read() for shard in shards[name]), strict=True)
        )
        assert (inputs.dtype, targets.dtype) == (columns.inputs.dtype, columns.targets.dtype)
        assert np.array_equal(inputs, columns.inputs[rows], equal_nan=True)
        assert np.array_equal(targets, columns.targets[rows])


def test_a_worker_may_have_no_rows(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = prepared(home, flats(tmp_path, 12), "flats", problem="regression")
    shards = shards_of(version, 12, monkeypatch)
    assert {shard.rows for shard in shards[LEARN]} == {0, 1}
    for shard in (*shards[LEARN], *shards[VALIDATION]):
        inputs, targets = shard.read()
        assert (inputs.shape, targets.shape) == ((shard.rows, *version.shape), (shard.rows,))


def test_rows_come_from_a_store_and_are_checked(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "_TABLE_SHARD_ROWS", 30)
    version = prepared(home, flats(tmp_path, 100), "flats", problem="regression")
    stored = Path(shutil.copytree(version.path, tmp_path / "stored"))
    for split in SPLITS:
        shutil.rmtree(Path(version.path) / split)
    files = SubTreeFileSystem(str(stored), LocalFileSystem())
    datasets = ray_datasets(version, SHARE, files)
    assert sum(dataset.count() for dataset in datasets.values()) == version.rows("train")
    part = stored / version.parts["train"][1].path
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(TransientError, match=r"not the file that the dataset's manifest lists\. The next"):
        shards_of(version, 1, monkeypatch, files)
    part.unlink()
    with pytest.raises(TransientError, match=r"part-00001\.parquet.* The next attempt reads the file again"):
        shards_of(version, 1, monkeypatch, files)
