"""Random, seeded damage to a dataset version is reported or has no effect; wrong rows are never returned."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from pets import random_pixels, write_rows
from small_runs import prepared

from tasks.transform import set_damaged_aside
from training.data.dataset import find, open_columns
from training.data.manifest import MANIFEST
from training.data.preparation import prepare
from training.data.sources import Source
from training.data.sources.parquet import ParquetImages
from training.errors import DataError
from training.records import DatasetVersion, Split
from training.storage.paths import Home

SEEDS = range(150)
SPLITS: tuple[Split, Split] = ("train", "test")
Rows = dict[Split, tuple[bytes, bytes, bytes]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """60 training and 30 test images, all different."""
    labels, splits = ["cat", "dog"] * 45, ["train"] * 60 + ["test"] * 30
    file = tmp_path_factory.mktemp("source") / "rows.parquet"
    return ParquetImages(write_rows(file, random_pixels(90), labels, split=splits))


@pytest.fixture(scope="module")
def whole(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatasetVersion]:
    """The source's dataset version in several parts, with unpacked columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "_SHARD_ROWS", 25)
        version = prepared(Home(tmp_path_factory.mktemp("whole")), source, "pets")
        rows_of(version)
        yield version


@pytest.fixture(scope="module")
def right(whole: DatasetVersion) -> Rows:
    return rows_of(whole)


def rows_of(version: DatasetVersion) -> Rows:
    """Everything that a training reads from a version."""
    rows: Rows = {}
    for split in SPLITS:
        columns = open_columns(version, split)
        rows[split] = (
            np.ascontiguousarray(columns.inputs).tobytes(),
            columns.targets.tobytes(),
            columns.digests.tobytes(),
        )
    return rows


def truncate(file: Path, others: list[Path], dice: random.Random) -> None:
    file.write_bytes(file.read_bytes()[: dice.randrange(file.stat().st_size)])


def flip_bits(file: Path, others: list[Path], dice: random.Random) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(dice.choice([1, 1, 1, 2, 20])):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    file.write_bytes(content)


def clear_a_range(file: Path, others: list[Path], dice: random.Random) -> None:
    content = bytearray(file.read_bytes())
    start = dice.randrange(len(content))
    content[start : start + 512] = bytes(len(content[start : start + 512]))
    file.write_bytes(content)


def empty(file: Path, others: list[Path], dice: random.Random) -> None:
    file.write_bytes(b"")


def delete(file: Path, others: list[Path], dice: random.Random) -> None:
    file.unlink()


def grow(file: Path, others: list[Path], dice: random.Random) -> None:
    file.write_bytes(file.read_bytes() + dice.randbytes(dice.randrange(1, 100)))


def swap(file: Path, others: list[Path], dice: random.Random) -> None:
    other = dice.choice(others)
    mine, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    other.write_bytes(mine)


def add_a_copy(file: Path, others: list[Path], dice: random.Random) -> None:
    shutil.copy(file, file.with_name(f"part-{dice.randrange(90000, 99999)}{file.suffix}"))


DAMAGES: list[Callable[[Path, list[Path], random.Random], None]] = [
    truncate,
    flip_bits,
    flip_bits,
    clear_a_range,
    empty,
    delete,
    grow,
    swap,
    add_a_copy,
]


def contents(root: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in root.rglob("*") if file.is_file() and file.suffix != ".lock"}


def damaged(version: DatasetVersion, seed: int) -> set[Path]:
    """Damage one or two files; returns the files that changed."""
    dice = random.Random(seed)
    before = contents(Path(version.path))
    files = sorted(before)
    kinds = (
        [path for path in files if ".columns" in str(path)],
        [path for path in files if ".columns" not in str(path)],
    )
    for _ in range(dice.choice([1, 1, 2])):
        file = dice.choice(dice.choice(kinds))
        if file.exists() and file.stat().st_size:
            there = [other for other in files if other.exists() and other != file]
            dice.choice(DAMAGES)(file, there, dice)
    after = contents(Path(version.path))
    return {file for file in before.keys() | after.keys() if before.get(file) != after.get(file)}


def damaged_copy(whole: DatasetVersion, home: Home, seed: int) -> tuple[DatasetVersion, set[Path]]:
    """Copy the version to `home` and damage it; returns the copy and its damaged part files and manifest."""
    folder = home.dataset("pets", whole.fingerprint)
    shutil.copytree(whole.path, folder)
    version = whole.model_copy(update={"path": str(folder)})
    changed = damaged(version, seed)
    return version, {
        file
        for file in changed
        if ".columns" not in str(file) and (file.name == MANIFEST or file.suffix == ".parquet")
    }


@pytest.mark.extended
@pytest.mark.parametrize("seed", SEEDS)
def test_damage_is_noticed_or_does_not_matter(
    whole: DatasetVersion, right: Rows, home: Home, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    version, counting = damaged_copy(whole, home, seed)
    assert find(home, "pets", version.fingerprint) == (None if counting else version)
    assert not counting or any(str(file) in caplog.text for file in counting)
    check_rows(version, right, counting)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(20))
def test_what_is_damaged_is_made_again(
    source: Source, whole: DatasetVersion, right: Rows, home: Home, seed: int
) -> None:
    version, _ = damaged_copy(whole, home, seed)
    if find(home, "pets", version.fingerprint) is None:
        set_damaged_aside(Path(version.path))
        assert prepared(home, source, "pets") == version
    assert find(home, "pets", version.fingerprint) == version
    assert rows_of(version) == right


def check_rows(version: DatasetVersion, right: Rows, counting: set[Path]) -> None:
    """A worker that got the version before the damage must read the right rows, or fail and name a damaged file."""
    refused = ""
    try:
        rows = rows_of(version)
    except DataError as error:
        rows, refused = {}, str(error)
    assert rows == right or any(str(file) in refused for file in counting)


def test_the_damages_reach_every_kind_of_file_in_every_way(whole: DatasetVersion, tmp_path: Path) -> None:
    """Otherwise the test above could pass because too little was damaged."""
    reached: dict[str, int] = {}
    for seed in SEEDS:
        shutil.copytree(whole.path, tmp_path / str(seed))
        version = whole.model_copy(update={"path": str(tmp_path / str(seed))})
        for file in damaged(version, seed) or {Path("none")}:
            kind = file.suffix if ".columns" not in str(file) else file.name
            reached[kind] = reached.get(kind, 0) + 1
    assert reached.get("none", 0) < 10
    assert all(
        reached[kind] >= 10 for kind in (".parquet", ".json", "inputs.npy", "targets.npy", "checksums.json")
    )
