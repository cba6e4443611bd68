"""Metric points: each step exactly once, with finite values, after any interruption."""

import math
from pathlib import Path

import pytest

from training.attempts.metrics import MetricsFile
from training.errors import TrainingError


@pytest.fixture
def metrics(tmp_path: Path) -> MetricsFile:
    """A metrics file with points at steps 10, 20 and 30 of 100."""
    file = MetricsFile(tmp_path / "metrics.jsonl", total_steps=100)
    for step in (10, 20, 30):
        file.append(step, epoch=step // 20 + 1, values={"train/loss": 1 / step})
    return file


def steps(file: MetricsFile) -> list[int]:
    return [point.step for point in file.read()]


def test_points_come_back_in_order_and_exactly(metrics: MetricsFile) -> None:
    points = metrics.read()
    assert [(point.step, point.epoch, point.total_steps) for point in points] == [
        (10, 1, 100),
        (20, 2, 100),
        (30, 2, 100),
    ]
    assert [point.values["train/loss"] for point in points] == [1 / 10, 1 / 20, 1 / 30]
    assert points[0].at <= points[1].at <= points[2].at


def test_no_file_has_no_points(tmp_path: Path) -> None:
    assert MetricsFile(tmp_path / "none.jsonl").read() == []


@pytest.mark.parametrize(("step", "kept"), [(30, [10, 20, 30]), (29, [10, 20]), (10, [10]), (0, [])])
def test_rewinding_forgets_the_points_after_a_step(metrics: MetricsFile, step: int, kept: list[int]) -> None:
    before = {point.step: point for point in metrics.read()}
    metrics.rewind(step)
    assert metrics.read() == [before[kept_step] for kept_step in kept]


def test_a_step_done_again_is_there_once(metrics: MetricsFile) -> None:
    metrics.rewind(15)
    for step in (20, 30, 40):
        metrics.append(step, 2, {"train/loss": 1 / step})
    assert steps(metrics) == [10, 20, 30, 40]


@pytest.mark.parametrize("length", [1, 20, -1, -2])
def test_a_torn_last_line_is_left_out(metrics: MetricsFile, length: int) -> None:
    *whole, last = metrics.path.read_text().splitlines(keepends=True)
    metrics.path.write_text("".join(whole) + last[:-1][:length])
    assert steps(metrics) == [10, 20]
    metrics.rewind(30)
    metrics.append(30, 2, {"train/loss": 1.0})
    assert steps(metrics) == [10, 20, 30]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_stops_the_training(metrics: MetricsFile, value: float) -> None:
    with pytest.raises(TrainingError, match=r"train/loss became .* at step 40 \(epoch 3\).*learning_rate"):
        metrics.append(40, 3, {"train/accuracy": 0.5, "train/loss": value})
    assert steps(metrics) == [10, 20, 30]
