"""Real workers are stopped, killed and asked to terminate: the model stays the same, bit for bit."""

import logging
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from crashes import outcome
from slow_runs import send, slow_job, when_at_step

from training.attempts.fence import Fence, SupersededError
from training.attempts.heartbeat import Beat
from training.attempts.history import read_attempts, read_failures
from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile
from training.errors import EvergreenError, StopRequestedError, TransientError
from training.ray_cluster import patches
from training.ray_cluster.controller import start_host
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import finished, launch

pytestmark = pytest.mark.usefixtures("ray_session")


def checkpoint_steps(job: TrainingJob) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in job.paths.checkpoints.glob("step-*")]


@pytest.mark.slow
def test_a_stopped_worker_is_found_and_replaced(
    home: Home, small_version: DatasetVersion, calm: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    job = slow_job(home, small_version, failure={"hang_timeout_s": 6.0})
    there: list[int] = []

    def stop(beats: list[Beat]) -> None:
        there.extend(checkpoint_steps(job))
        send(1, signal.SIGSTOP)(beats)

    hit = when_at_step(job.paths, 20, stop)
    trained = launch(job)
    hit.join()
    assert outcome(job, trained) == calm
    assert trained.reproducible is True, trained.reproducible_reason  # all three ranks replayed
    assert "its process is stopped" in caplog.text  # rank 1
    # The other ranks wait for rank 1: their stacks show where.
    assert "torch/distributed" in caplog.text or "backward" in caplog.text
    (failure,) = read_failures(job.paths)
    silence = re.search(r"worker 1 is stopped and sent no heartbeat for (\d+) s", failure.error)
    assert silence is not None
    assert int(silence.group(1)) >= 6
    second = read_attempts(job.paths)[1]
    assert second.first_step >= max(there) >= 12
    assert 0 <= second.reached - second.first_step <= 2 * 4 + 30  # a heartbeat a second, 30 steps a second


def kill_controller(_beats: list[Beat]) -> None:
    """SIGKILL the process of Ray Train's controller; the Ray of this test process has only one at a time."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "TrainController" in process.name():
                process.kill()


def actors() -> dict[str, str]:
    """Class of each actor that this Ray cluster has had so far, by name."""
    from ray._private import state

    return {name: actor["ActorClassName"] for name, actor in state.actors().items()}


def reserved() -> list[str]:
    """Placement groups that Ray still reserves for workers."""
    from ray.util import placement_group_table

    return [name for name, group in placement_group_table().items() if group["state"] != "REMOVED"]


@pytest.mark.slow
def test_sigterm_saves_first_and_a_failure_beyond_the_budget_ends_a_run_and_the_next_starts_go_on(
    home: Home, small_version: DatasetVersion, calm: tuple[Any, ...]
) -> None:
    without_budget = {"max_failures": 0}
    job = slow_job(
        home, small_version, checkpoint={"every_steps": None, "every_s": 1000.0}, failure=without_budget
    )
    before_us = actors()
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, _frame: heard.append(signum))
    try:
        hit = when_at_step(job.paths, 21, lambda _beats: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(StopRequestedError, match=r"stopped on request at step \d+ of") as stopped:
            launch(job)
        hit.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]  # passed on to the previous signal handler
    assert not job.paths.stop.exists()
    stopped_at = int(str(stopped.value).partition("at step ")[2].split()[0])
    assert max(checkpoint_steps(job)) == stopped_at  # inside an epoch, where nothing else saves
    assert ["stopped on request" in failure.error for failure in read_failures(job.paths)] == [True]

    hit = when_at_step(job.paths, stopped_at + 2, kill_controller)
    with pytest.raises(TransientError):
        launch(job)
    hit.join()
    assert reserved() == []
    if patches.active():
        # Ray Train would start five other actors for each worker start, which take 2 to 3 s of it.
        started = Counter(kind for name, kind in actors().items() if name not in before_us)
        assert started["TrainControllerHost"] <= 1  # kept from the previous worker start, until it was killed
        assert started.keys() - {"TrainControllerHost"} == {"RayTrainWorker"}
    assert len(read_failures(job.paths)) == 2
    assert finished(job.paths, job.run_key) is None

    assert outcome(job, launch(job)) == calm
    _, second, third = read_attempts(job.paths)
    assert second.first_step == stopped_at
    assert third.first_step >= stopped_at


@pytest.mark.slow
def test_workers_that_can_not_meet_leave_their_place_to_the_next_attempt(
    home: Home, small_version: DatasetVersion
) -> None:
    job = slow_job(
        home, small_version, scaling={"network_interface": "nowhere0"}, failure={"max_failures": 1}
    )
    with pytest.raises(EvergreenError, match="nowhere0"):
        launch(job)
    assert reserved() == []
    assert len(read_failures(job.paths)) >= 1


def test_a_controller_that_is_there_hears_how_long_workers_may_take_to_start(
    home: Home, small_version: DatasetVersion
) -> None:
    import ray
    from ray.util import placement_group, remove_placement_group

    start_host(own_ray=True)  # started before this controller gets the setting
    everything = placement_group([{"CPU": ray.cluster_resources()["CPU"]}])
    assert everything.wait(60)
    job = slow_job(home, small_version, failure={"max_failures": 0, "worker_start_timeout_s": 3.0})
    try:
        # Without hooks, the watchdog may be the first: the controller takes seconds to start.
        ends = r"(after 3\.0 seconds|within 9 s) ?.*failure\.worker_start_timeout_s"
        with pytest.raises(TransientError, match=ends):
            launch(job)
    finally:
        remove_placement_group(everything)


def test_an_attempt_that_was_given_up_can_not_write(home: Home, small_version: DatasetVersion) -> None:
    job = slow_job(home, small_version)
    job.paths.root.mkdir(parents=True)
    old = Fence.begin(job.paths)
    group = Fence.enter(job.paths, old.number)
    group.check()
    replaced = Fence.enter(job.paths, old.number)
    replaced.check()
    with pytest.raises(SupersededError):
        group.check()
    new = Fence.begin(job.paths)
    assert new.number == old.number + 1
    for late in (group, replaced):
        with pytest.raises(SupersededError, match=f"superseded by attempt {new.number}.0"):
            MetricsFile(job.paths.metrics, 10, late).append(1, 1, {"train/loss": 1.0})
    with pytest.raises(SupersededError):
        Fence.enter(job.paths, old.number)
    assert not job.paths.metrics.exists()


def handlers() -> list[Any]:
    return [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No stopped worker and no signal handler is left."""
    before = handlers()
    yield
    assert handlers() == before
    stopped = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_STOPPED:
                stopped.append(process)
    assert stopped == []
    logging.getLogger("evergreen").setLevel(logging.NOTSET)
