"""Reading a file of records while it grows, shrinks and is replaced."""

from pathlib import Path

import pytest

from training.attempts.metrics import MetricsFile
from training.storage import line_tail
from training.storage.paths import RunPaths


@pytest.fixture
def metrics(tmp_path: Path) -> MetricsFile:
    return MetricsFile(RunPaths(tmp_path / "run").metrics, total_steps=9)


def steps(tail: line_tail.LineTail) -> list[int]:
    return [point.step for point in tail.new()]


def add(metrics: MetricsFile, *steps: int) -> None:
    metrics.path.parent.mkdir(exist_ok=True)
    for step in steps:
        metrics.append(step, 1, {"loss": 1.0 / step})


def test_each_point_comes_once(metrics: MetricsFile) -> None:
    tail = metrics.tail()
    assert steps(tail) == []
    add(metrics, 1, 2)
    assert steps(tail) == [1, 2]
    assert steps(tail) == []
    add(metrics, 3)
    assert steps(tail) == [3]


def test_a_line_that_is_being_written_comes_when_it_is_whole(metrics: MetricsFile) -> None:
    tail = metrics.tail()
    add(metrics, 1, 2)
    whole = metrics.path.read_bytes()
    metrics.path.write_bytes(whole[:-20])
    assert steps(tail) == [1]
    with metrics.path.open("ab") as stream:
        stream.write(whole[-20:])
    assert steps(tail) == [2]
    assert not tail.damage


def test_a_file_that_was_written_again_is_read_from_its_beginning(metrics: MetricsFile) -> None:
    tail = metrics.tail()
    add(metrics, 1, 2, 3)
    assert steps(tail) == [1, 2, 3]
    metrics.rewind(1)
    add(metrics, 2, 3, 4)
    assert steps(tail) == [1, 2, 3, 4]


def test_damage_is_named_and_other_points_come(metrics: MetricsFile) -> None:
    tail = metrics.tail()
    add(metrics, 1, 2, 3)
    metrics.path.write_bytes(metrics.path.read_bytes().replace(b'"loss": 0.5', b'"loss": 0.7'))
    assert steps(tail) == [1, 3]
    assert "line 2" in tail.damage


def test_a_poll_reads_only_what_is_new(metrics: MetricsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = metrics.tail()
    add(metrics, *range(1, 50))
    tail.new()
    taken: list[bytes] = []
    take = line_tail.LineReader.take
    monkeypatch.setattr(
        line_tail.LineReader, "take", lambda self, line: (taken.append(line), take(self, line))
    )
    add(metrics, 50)
    assert steps(tail) == [50]
    assert len(taken) == 1
