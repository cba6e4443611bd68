"""Checkpoint logs of small states for tests; each state contains the step at which it was saved."""

from pathlib import Path
from typing import Any

import torch

from training.checkpoints.checkpoint_log import CheckpointLog, Position
from training.settings.schema import CheckpointSettings

KEY = "k" * 64


def at(step: int) -> Position:
    """Position of global step `step` in a training of ten steps an epoch."""
    return Position(epoch=step // 10, step_in_epoch=step % 10, step=step)


def opened(folder: Path, key: str = KEY, **settings: Any) -> CheckpointLog:
    """Open the log in `folder` as a newly started process would."""
    return CheckpointLog(folder / "checkpoints", CheckpointSettings(**settings), key)


def save(log: CheckpointLog, *steps: int, score: float | None = None) -> None:
    """Commit a checkpoint at each of `steps`, one after the other."""
    for step in steps:
        log.save(at(step), {"step": step, "tensor": torch.full((100,), float(step))}, score)
        log.wait()


def steps(log: CheckpointLog) -> list[int]:
    """Steps of the complete checkpoints, oldest first."""
    return [int(path.name.removeprefix("step-")) for path in log.entries()]


def newest(log: CheckpointLog) -> int | None:
    """Load the newest valid checkpoint and check that its state belongs to its step; returns that step."""
    checkpoint = log.load_newest()
    if checkpoint is None:
        return None
    position, state = checkpoint
    assert position == at(position.step)
    assert state["step"] == position.step
    assert torch.equal(state["tensor"], torch.full((100,), float(position.step)))
    return position.step


def folder(log: CheckpointLog, step: int) -> Path:
    return log.folder / f"step-{step:09d}"
