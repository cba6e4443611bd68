"""Pauses between a failed attempt and the next attempt; time.sleep is replaced, so the tests wait for nothing."""

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable

import pytest
from small_runs import job_for, tiny_settings

from training.attempts.heartbeat import Beat
from training.attempts.job import TrainingJob
from training.errors import DataError, SettingError, TransientError
from training.records import DatasetVersion
from training.storage.files import write_text
from training.storage.paths import Home
from training.supervision import launch, supervise
from training.termination import ended_by_sigterm


def failing_at(steps: list[int]) -> Callable[[TrainingJob], None]:
    """A training function whose attempts reach these steps, one after the other, and then each fail."""
    left = iter(steps)

    def attempt(job: TrainingJob) -> None:
        beat = Beat(
            attempt=job.attempt,
            rank=0,
            pid=os.getpid(),
            process_start="boot/1",
            host=socket.gethostname(),
            node="",
            step=next(left),
            gap_s=0.1,
        )
        write_text(job.paths.beats / "rank-0.json", beat.model_dump_json())
        raise TransientError("a worker was killed")

    return attempt


@pytest.mark.parametrize(
    ("steps", "scaling", "pauses"),
    [
        ([10, 20, 30, 40], {}, [0.5, 0.5, 0.5]),
        ([0, 0, 0, 0, 0, 0, 0, 0, 0], {}, [1, 2, 4, 8, 16, 32, 60, 60]),
        ([10, 10, 5, 11, 11], {}, [0.5, 1, 2, 0.5]),  # reaching the same step again is no progress
        ([10, 20, 20], {"num_workers": 2, "min_workers": 1}, [15, 15]),
    ],
)
def test_only_attempts_that_get_no_further_are_waited_for_longer(
    home: Home,
    small_version: DatasetVersion,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[int],
    scaling: dict[str, int],
    pauses: list[float],
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    monkeypatch.setattr(supervise.time, "sleep", slept.append)
    settings = tiny_settings(scaling={"num_workers": 0} | scaling, failure={"max_failures": len(steps) - 1})
    job = job_for(home, small_version, settings)
    with pytest.raises(TransientError, match="a worker was killed"):
        supervise.train_until_done(job, failing_at(steps), on_ray=False)
    assert slept == pauses


def test_a_command_that_comes_no_further_than_the_one_before_waits_longer(
    home: Home, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny_settings(scaling={"num_workers": 0}, failure={"max_failures": 0})
    job = job_for(home, small_version, settings)
    with pytest.raises(TransientError):
        supervise.train_until_done(job, failing_at([50]), on_ray=False)
    slept: list[float] = []
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    monkeypatch.setattr(supervise.time, "sleep", slept.append)
    again = job_for(
        home, small_version, tiny_settings(scaling={"num_workers": 0}, failure={"max_failures": 2})
    )
    with pytest.raises(TransientError):
        supervise.train_until_done(again, failing_at([50, 51, 52]), on_ray=False)
    assert slept == [1, 0.5]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_training_in_this_process_that_does_not_stop_is_interrupted(
    home: Home, small_version: DatasetVersion, signum: signal.Signals
) -> None:
    """Without Ray, no watchdog ends a step that hangs: the signal is repeated after `failure.stop_timeout_s`."""
    settings = tiny_settings(scaling={"num_workers": 0}, failure={"stop_timeout_s": 1.0})
    asked: list[bool] = []

    def hangs(job: TrainingJob) -> None:
        signal.raise_signal(signum)
        while True:
            asked.append(job.paths.stop.is_file())
            time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt), ended_by_sigterm():
        supervise.train_until_done(job_for(home, small_version, settings), hangs, on_ray=False)
    assert any(asked)  # a last checkpoint was requested first


def test_a_dataset_is_uploaded_before_the_attempt_is_watched(
    home: Home, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog would take an upload of minutes for workers that do not start."""
    threads: list[threading.Thread] = []

    def refused(job: TrainingJob) -> None:
        del job
        threads.append(threading.current_thread())
        raise SettingError("no access")

    monkeypatch.setattr(supervise, "upload_inputs", refused)
    job = job_for(home, small_version, tiny_settings(scaling={"num_workers": 2}))
    with pytest.raises(SettingError, match="no access"):
        supervise.train_until_done(job, failing_at([]), on_ray=True)
    assert threads == [threading.main_thread()]


def test_a_finished_model_that_can_not_be_downloaded_is_no_bug(
    home: Home, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(_stored: object, _paths: object) -> bool:
        raise DataError("s3://evergreen/model.safetensors: missing.")

    monkeypatch.setattr(launch, "stored_run", lambda _job: object())
    monkeypatch.setattr(launch, "download_model", damaged)
    with pytest.raises(TransientError, match=r"model.safetensors: missing.*run the same command again"):
        launch._download_trained(job_for(home, small_version, tiny_settings()))
