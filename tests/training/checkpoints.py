"""A log of small checkpoints, whose states say which step they are of."""

from pathlib import Path
from typing import Any

import torch

from training.checkpoints.checkpoint_log import CheckpointLog, Position
from training.settings.schema import CheckpointSettings

KEY = "k" * 64


def at(step: int) -> Position:
    """Ten steps an epoch."""
    return Position(epoch=step // 10, step_in_epoch=step % 10, step=step)


def opened(folder: Path, key: str = KEY, **settings: Any) -> CheckpointLog:
    """The log in `folder`, as a process that has just started opens it."""
    return CheckpointLog(folder / "checkpoints", CheckpointSettings(**settings), key)


def save(log: CheckpointLog, *steps: int, score: float | None = None) -> None:
    """Commit a checkpoint at each of `steps`."""
    for step in steps:
        log.save(at(step), {"step": step, "tensor": torch.full((100,), float(step))}, score)
        log.wait()


def steps(log: CheckpointLog) -> list[int]:
    """Steps of the finished checkpoints, oldest first."""
    return [int(path.name.removeprefix("step-")) for path in log.entries()]


def newest(log: CheckpointLog) -> int | None:
    """Step of the checkpoint that is used, its state being that step's."""
    found = log.load_newest()
    if found is None:
        return None
    position, state = found
    assert position == at(position.step)
    assert state["step"] == position.step
    assert torch.equal(state["tensor"], torch.full((100,), float(position.step)))
    return position.step


def folder(log: CheckpointLog, step: int) -> Path:
    return log.folder / f"step-{step:09d}"
