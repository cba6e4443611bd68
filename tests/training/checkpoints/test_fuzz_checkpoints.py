"""Random, seeded damage: the newest intact checkpoint is used, damaged ones are reported; never a wrong state."""

import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import newest, opened, save, steps

from training.checkpoints.checkpoint_files import MANIFEST, STATE

SEEDS = range(200)
STEPS = (10, 17, 20, 25, 30)
KEPT: dict[str, Any] = {"keep_newest": len(STEPS)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of five undamaged checkpoints, some at the end of an epoch."""
    folder = tmp_path_factory.mktemp("whole")
    log = opened(folder, **KEPT)
    for step in STEPS:
        save(log, step, score=1 / step if step % 10 == 0 else None)
    return folder


def truncate(file: Path, other: Path, dice: random.Random) -> None:
    file.write_bytes(file.read_bytes()[: dice.randrange(file.stat().st_size)])


def flip_bits(file: Path, other: Path, dice: random.Random) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(dice.choice([1, 1, 1, 2, 20])):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    file.write_bytes(content)


def grow(file: Path, other: Path, dice: random.Random) -> None:
    file.write_bytes(file.read_bytes() + dice.randbytes(dice.randrange(1, 100)))


def empty(file: Path, other: Path, dice: random.Random) -> None:
    file.write_bytes(b"")


def delete(file: Path, other: Path, dice: random.Random) -> None:
    file.unlink()


def swap(file: Path, other: Path, dice: random.Random) -> None:
    """Swap a state or manifest file with the file of the same name of another step."""
    mine, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    other.write_bytes(mine)


def swap_folders(file: Path, other: Path, dice: random.Random) -> None:
    """Swap state and manifest with those of another step, so that the two agree with each other."""
    for name in (MANIFEST, STATE):
        swap(file.with_name(name), other.with_name(name), dice)


def copy_over(file: Path, other: Path, dice: random.Random) -> None:
    shutil.copy(other, file)


DAMAGES: list[Callable[[Path, Path, random.Random], None]] = [
    truncate,
    flip_bits,
    flip_bits,
    flip_bits,
    grow,
    empty,
    delete,
    swap,
    swap,
    swap_folders,
    copy_over,
]


def damaged(folder: Path, seed: int) -> set[Path]:
    """Damage checkpoints, preferably the newest; returns the files that changed."""
    dice = random.Random(seed)
    before = contents(folder)
    for _ in range(dice.choice([1, 2, 3, 6])):
        (step,) = dice.choices(STEPS, weights=[1, 1, 1, 3, 9])
        folders = [
            folder_of(folder, chosen)
            for chosen in (step, dice.choice([other for other in STEPS if other != step]))
        ]
        name = dice.choice([STATE, MANIFEST])
        if all(_intact(checkpoint / file_name) for checkpoint in folders for file_name in (STATE, MANIFEST)):
            dice.choice(DAMAGES)(folders[0] / name, folders[1] / name, dice)
    after = contents(folder)
    return {file for file in before if before[file] != after.get(file)}


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def folder_of(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:09d}"


def _intact(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


@pytest.mark.extended
@pytest.mark.parametrize("seed", SEEDS)
def test_the_newest_whole_one_is_used_and_damaged_ones_are_named(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    shutil.copytree(whole, tmp_path / "log")
    touched = {file.parent for file in damaged(tmp_path / "log", seed)}
    untouched = [step for step in STEPS if folder_of(tmp_path / "log", step) not in touched]
    log = opened(tmp_path / "log", **KEPT)
    with caplog.at_level(logging.WARNING, "evergreen.checkpoint"):
        newest_step = newest(log) or 0  # also checks that the state belongs to the step
    # A flipped bit may be in an irrelevant place, such as a score; the checkpoint is then still used.
    assert newest_step >= max(untouched, default=0)
    for step in steps(log):
        assert step <= newest_step or f"checkpoint {folder_of(tmp_path / 'log', step)}: " in caplog.text
    for step in (newest_step + 1, newest_step + 2):  # training must continue, whatever is left in the folder
        save(log, step)
        assert newest(opened(tmp_path / "log", **KEPT)) == step


@pytest.mark.extended
def test_the_damages_reach_states_and_manifests_of_old_and_new_ones(whole: Path, tmp_path: Path) -> None:
    """Otherwise the test above could pass because too little was damaged."""
    reached: dict[str, int] = {}
    used: dict[int | None, int] = {}
    for seed in SEEDS:
        shutil.copytree(whole, tmp_path / str(seed))
        for file in damaged(tmp_path / str(seed), seed) or {Path("none")}:
            reached[file.name] = reached.get(file.name, 0) + 1
        newest_step = newest(opened(tmp_path / str(seed), **KEPT))
        used[newest_step] = used.get(newest_step, 0) + 1
    assert reached.get("none", 0) < 10
    assert all(reached[name] >= 50 for name in (STATE, MANIFEST))
    assert all(used.get(step, 0) >= 5 for step in STEPS[-3:])
