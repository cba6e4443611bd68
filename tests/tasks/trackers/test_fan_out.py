"""Trackers beside MLflow get each step once, and neither delay nor end a training."""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tracker_contract import point

from tasks.trackers import fan_out
from tasks.trackers.base import RunInfo, Status
from tasks.trackers.fan_out import FanOut, sending
from training.attempts.metrics import Point
from training.errors import OutageError, StopRequestedError
from training.seams import TRACKERS
from training.settings.schema import Settings


class Recorder:
    """A tracker that keeps its points; `begin` waits for `may_begin`, and `points` fails at step `fails_at`."""

    def __init__(self, fails_at: int = 0) -> None:
        self.may_begin, self.taken, self.ended, self.fails_at = threading.Event(), list[Point](), "", fails_at

    def begin(self, run: RunInfo) -> str:  # noqa: ARG002
        self.may_begin.wait()
        return "here"

    def points(self, batch: Sequence[Point]) -> None:
        if any(metric_point.step == self.fails_at for metric_point in batch):
            raise OSError("the disk is full")
        self.taken += batch

    def end(self, status: Status) -> None:
        self.ended = status


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return RunInfo("digits", "a" * 64, tmp_path, {})


def test_points_that_a_resumed_training_computes_again_are_sent_once(run: RunInfo) -> None:
    recorder = Recorder()
    recorder.may_begin.set()
    with sending([FanOut("recorder", recorder, run)]) as (listener,):
        for metric_point in (
            point(1, loss=2.0),
            point(2, loss=1.0),
            point(2, loss=1.0, accuracy=0.5),
            point(3, loss=0.5),
        ):
            listener(metric_point)
    assert [(metric_point.step, metric_point.values) for metric_point in recorder.taken] == [
        (1, {"loss": 2.0}),
        (2, {"loss": 1.0}),
        (2, {"accuracy": 0.5}),
        (3, {"loss": 0.5}),
    ]
    assert recorder.ended == "FINISHED"


def test_a_tracker_that_fails_is_left_out_with_one_warning(
    run: RunInfo, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(fails_at=1)
    recorder.may_begin.set()
    with caplog.at_level(logging.WARNING), sending([FanOut("recorder", recorder, run)]) as (listener,):
        for step in range(1, 50):
            listener(point(step, loss=1.0))
    assert recorder.taken == []
    (warning,) = [record.getMessage() for record in caplog.records if record.name.startswith("evergreen")]
    assert "tracking.also: recorder failed" in warning
    assert "the disk is full" in warning
    assert "metrics.jsonl" in warning


def test_a_tracker_that_hangs_is_not_waited_for(
    run: RunInfo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fan_out, "END_S", 0.1)
    recorder = Recorder()
    with caplog.at_level(logging.WARNING), sending([FanOut("recorder", recorder, run)]) as (listener,):
        listener(point(1, loss=1.0))
    assert "recorder did not accept the last points within 0.1 s" in caplog.text
    recorder.may_begin.set()


def test_several_trackers_that_hang_share_the_time(run: RunInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waited = [100.0], list[float]()

    def join(_: threading.Thread, seconds: float) -> None:
        waited.append(seconds)
        clock[0] += seconds

    recorders = [Recorder() for _ in range(3)]
    trackers = [FanOut("recorder", recorder, run) for recorder in recorders]
    with monkeypatch.context() as patch:
        patch.setattr(fan_out.time, "monotonic", lambda: clock[0])
        patch.setattr(threading.Thread, "join", join)
        with sending(trackers):
            pass
    for recorder in recorders:
        recorder.may_begin.set()
    assert waited == [fan_out.END_S, 0.0, 0.0]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("no"), "FAILED"),
        (StopRequestedError("stopped"), "KILLED"),
        (KeyboardInterrupt(), "KILLED"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_tracker_hears_how_the_run_ended(run: RunInfo, error: BaseException, status: str) -> None:
    recorder = Recorder()
    recorder.may_begin.set()
    with pytest.raises(type(error)), sending([FanOut("recorder", recorder, run)]):
        raise error
    assert recorder.ended == status


def test_a_finished_training_is_finished_also_after_an_error(run: RunInfo) -> None:
    recorder = Recorder()
    recorder.may_begin.set()
    with pytest.raises(OutageError), sending([FanOut("recorder", recorder, run)], lambda: True):
        raise OutageError("MLflow did not accept all metrics")
    assert recorder.ended == "FINISHED"


def test_the_setting_names_the_trackers_that_there_are() -> None:
    for name in TRACKERS:
        for said in (name, [name]):
            assert Settings.model_validate({"tracking": {"also": said}}).tracking.also == (name,)
        assert Settings.model_validate({"tracking": {"also": f"{name},{name}"}}).tracking.also == (name,)
    assert Settings().tracking.also == ()
    with pytest.raises(ValueError, match=r"tracking\.also"):
        Settings.model_validate({"tracking": {"also": "paper"}})
