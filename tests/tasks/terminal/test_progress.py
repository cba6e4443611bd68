"""The progress shown during a training: lines, a bar, and Prefect's artifact."""

import io
import logging
import threading
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterId
from rich.console import Console

from tasks.run_words import run_words
from tasks.terminal.progress import Bar, ProgressArtifact, TelemetryLog
from training.attempts.metrics import Point


def point(step: int, at: float, epoch: int = 1) -> Point:
    """A metric point inside an epoch."""
    names = ("train/loss", "train/accuracy", "speed/images_per_s", "speed/data_wait_share")
    return Point(step=step, total_steps=100, epoch=epoch, at=at, values=dict.fromkeys(names, 0.5))


def epoch_end(step: int, at: float, epoch: int) -> Point:
    """The metric point at the end of an epoch."""
    return Point(
        step=step,
        total_steps=100,
        epoch=epoch,
        at=at,
        values={"validation/loss": 0.5, "validation/accuracy": 0.9, "epoch": float(epoch)},
    )


def test_each_point_has_a_line_with_the_time_left(caplog: pytest.LogCaptureFixture) -> None:
    log = TelemetryLog(epochs=5, interval_s=0.0)
    with caplog.at_level(logging.INFO, "evergreen.train"):
        for new in (point(50, 1, 3), epoch_end(60, 2, 3), point(70, 3, 4)):
            log(new)
    assert [message.split("  ")[0] for message in caplog.messages] == ["epoch 3/5", "epoch 3/5", "epoch 4/5"]
    # 20 steps in 2 seconds, 30 steps remain.
    assert caplog.messages[-1].endswith("ETA 0:03")


def test_the_bar_starts_at_the_first_new_point() -> None:
    bar = Bar(epochs=5)
    out = io.StringIO()
    with bar.shown(Console(file=out, force_terminal=True, width=120)):
        assert "starting workers" in bar._progress.tasks[0].description
        bar(point(50, 1, 3))
        assert (bar._progress.tasks[0].completed, bar._progress.tasks[0].total) == (50, 100)


def test_a_break_does_not_count_for_the_time_left(caplog: pytest.LogCaptureFixture) -> None:
    log = TelemetryLog(epochs=5, interval_s=0.0)
    with caplog.at_level(logging.INFO, "evergreen.train"):
        for step, at in ((10, 1), (40, 4), (30, 600), (50, 602)):  # ten minutes without workers
            log(point(step, at))
    assert caplog.messages[-1].endswith("ETA 0:05")


def _validated(step: int) -> Point:
    return Point(step=step, total_steps=100, epoch=1, at=0.0, values={"validation/loss": 1.0})


@pytest.mark.usefixtures("prefect_harness")
def test_prefect_shows_how_far_training_is() -> None:
    @flow
    def training() -> Any:
        shown = ProgressArtifact("digits-training")
        for step in (20, 60, 100):
            shown(_validated(step))
        assert shown._thread is not None
        shown._thread.join(60)
        return shown._id

    with get_client(sync_client=True) as client:
        chosen = ArtifactFilter(id=ArtifactFilterId(any_=[training()]))
        (artifact,) = client.read_artifacts(artifact_filter=chosen)
    assert (artifact.key, artifact.type, artifact.data) == ("digits-training", "progress", 100.0)


def test_nobody_waits_for_a_prefect_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    back, asked, answered = threading.Event(), [], []

    def hanging(*_: Any, **__: Any) -> None:
        asked.append(1)
        answered.append(back.wait(300))
        raise ConnectionError("no server")

    monkeypatch.setattr("prefect.artifacts.create_progress_artifact", hanging)
    shown = ProgressArtifact("digits-training")
    for step in (20, 60, 100):
        shown(_validated(step))
    assert not answered
    assert len(asked) <= 1
    back.set()
    assert shown._thread is not None
    shown._thread.join(60)
    assert not shown._thread.is_alive()


def round_end(number: int, at: float) -> Point:
    """The metric point of a boosting round, which has training and validation metrics."""
    values = {
        "train/loss": 2500.0,
        "train/rmse": 50.0,
        "validation/loss": 3600.0,
        "validation/rmse": 60.0,
        "speed/images_per_s": 81_000.0,
        "speed/data_wait_share": 0.0,
    }
    return Point(step=number, total_steps=200, epoch=number, at=at, values=values)


def test_the_last_round_of_a_training_that_ends_early_is_shown_as_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = run_words("table", "xgboost", "regression")
    log, bar = TelemetryLog(200, words), Bar(200, words)
    last = round_end(57, 3).model_copy(update={"total_steps": 57})
    with (
        caplog.at_level(logging.INFO, "evergreen.train"),
        bar.shown(Console(file=io.StringIO(), force_terminal=True, width=120)),
    ):
        for point in (round_end(1, 1), round_end(56, 2), last):
            log(point)
            bar(point)
        task = bar._progress.tasks[0]
        assert (task.completed, task.total, task.description) == (57, 57, "round 57/57")
    assert caplog.messages[0].startswith("round 1/200    0%")
    assert caplog.messages[-1].startswith("round 57/57  100%")
    assert "ETA 0:00" in caplog.messages[-1]


def test_rounds_on_a_table_are_shown_in_their_words(caplog: pytest.LogCaptureFixture) -> None:
    words = run_words("table", "xgboost", "regression")
    log, bar = TelemetryLog(200, words), Bar(200, words)
    with caplog.at_level(logging.INFO, "evergreen.train"):
        for number in range(1, 201):
            log(round_end(number, number))
    assert len(caplog.messages) == 2  # one line each 5 seconds, and the last
    assert caplog.messages[-1].startswith("round 200/200  100%  loss 2,500.0  RMSE 50.0000  81,000 rows/s")
    assert caplog.messages[-1].endswith("validation RMSE 60.0000")
    with bar.shown(Console(file=io.StringIO(), force_terminal=True, width=120)):
        bar(round_end(40, 1))
        task = bar._progress.tasks[0]
        assert task.description == "round 40/200"
        assert task.fields["telemetry"] == "loss 2,500.0  val. RMSE 60.000  81,000 rows/s"
