"""The mean time of a step in a worker's heartbeat, with a simulated clock; heartbeats of a worker that waits."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from training.attempts import heartbeat
from training.attempts.heartbeat import Beat, Heartbeat
from training.storage.record_files import read_record


@pytest.fixture
def beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float, int], float]:
    """A function that sends a heartbeat at a time, in seconds, and returns the `gap_s` that the file has then."""
    now = [0.0]
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sender = Heartbeat(tmp_path / "run" / "beats" / "rank-0.json", 1, 0, "node")

    def beat(at: float, step: int) -> float:
        now[0] = 1000.0 + at
        sender.beat(step)
        return read_record(sender.file, Beat, "run").gap_s

    return beat


def test_the_mean_time_of_a_step_is_unknown_until_two_steps_are_done(
    beats: Callable[[float, int], float],
) -> None:
    assert [beats(100, 0), beats(140, 1)] == [0, 0]
    assert [beats(180, 2), beats(230, 3)] == [40, 45]


def test_heartbeats_of_a_worker_that_waits_are_no_steps(beats: Callable[[float, int], float]) -> None:
    """Scenario: a thread sends heartbeats while the worker loads its rows, and later while a checkpoint is written."""
    for second in range(300):
        beats(second, 0)
    assert [beats(345, 1), beats(390, 2)] == [0, 45]
    assert [beats(390 + second, 2) for second in range(1, 30)] == [45] * 29
    assert beats(450, 3) == 38  # the mean of 45 and 31: the wait from 390 to 419 is no part of a step


def test_a_validation_is_no_part_of_a_step(beats: Callable[[float, int], float]) -> None:
    assert [beats(0, 0), beats(10, 1), beats(11, 2)] == [0, 0, 1]
    assert [beats(11 + second, 2) for second in range(60, 3600, 60)] == [1] * 59
    assert beats(3552, 3) == 1


def test_a_resumed_training_does_not_count_its_earlier_steps(beats: Callable[[float, int], float]) -> None:
    assert [beats(10, 0), beats(50, 25), beats(90, 26)] == [0, 0, 40]


def test_a_disk_that_fails_for_a_moment_does_not_end_the_heartbeats_of_a_worker_that_waits(
    tmp_path: Path,
) -> None:
    sender = Heartbeat(tmp_path / "run" / "beats" / "rank-0.json", 1, 0, "node", interval_s=0.01)
    folder = sender.file.parent
    with sender.kept_beating(3):
        wait_for(sender.file)
        folder.rename(tmp_path / "moved")
        time.sleep(0.2)  # in which heartbeats can't be written
        folder.mkdir()
        wait_for(sender.file)


def wait_for(file: Path) -> None:
    while not file.exists():
        assert "evergreen-heartbeat" in [thread.name for thread in threading.enumerate()]
        time.sleep(0.01)
