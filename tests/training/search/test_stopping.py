"""A trial that is stopped may finish its last checkpoint: the time limit counts from the last byte that was written."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training.search.ray_trial import RayTrial


def stopped(folder: Path, moved: Iterator[int], limit_s: float, takes_s: float) -> bool:
    """Stop a trial whose checkpoint takes `takes_s`; returns whether the trial was given the time."""
    done = threading.Event()
    training = threading.Thread(target=done.wait, args=(takes_s,), daemon=True)
    training.start()
    settings = SimpleNamespace(failure=SimpleNamespace(stop_timeout_s=limit_s))
    trial: Any = SimpleNamespace(
        _training=training,
        _moved=lambda: next(moved),
        _paths=SimpleNamespace(stop=folder / "stop"),
        _job=SimpleNamespace(plan=SimpleNamespace(settings=settings)),
    )
    RayTrial._stop(trial)
    ended = not training.is_alive()
    done.set()
    return ended


@pytest.mark.parametrize(("moved", "waits"), [(itertools.count(), True), (itertools.repeat(5), False)])
def test_a_trial_is_stopped_when_its_checkpoint_makes_no_progress(
    tmp_path: Path, moved: Iterator[int], waits: bool
) -> None:
    assert stopped(tmp_path, moved, limit_s=1.0, takes_s=4.0 if waits else 600.0) is waits
    assert not (tmp_path / "stop").exists()
