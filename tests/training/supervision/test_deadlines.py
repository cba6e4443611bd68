"""How long the driver waits for the last checkpoint of a stopped training: as long as bytes of it are moving."""

import signal
import time

import pytest
from crashes import settings
from small_runs import job_for

from training.attempts.heartbeat import Heartbeat
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision import deadlines
from training.supervision.deadlines import Deadlines

ASKED = [signal.SIGTERM]


@pytest.fixture
def limits(home: Home, small_version: DatasetVersion) -> Deadlines:
    job = job_for(home, small_version, settings(failure={"stop_timeout_s": 0.2}))
    return Deadlines(job.model_copy(update={"attempt": 3}))


def passes(limits: Deadlines) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not limits.passed(ASKED):
        time.sleep(0.02)
    return limits.passed(ASKED)


def heartbeat(limits: Deadlines, attempt: int = 3) -> Heartbeat:
    return Heartbeat(limits.job.paths.beats / "rank-0.json", attempt, 0, "node", interval_s=0)


def test_without_a_request_to_stop_nothing_passes(limits: Deadlines) -> None:
    assert not limits.passed([])
    time.sleep(0.3)
    assert not limits.passed([])


def test_a_checkpoint_whose_bytes_move_is_waited_for(limits: Deadlines) -> None:
    beating = heartbeat(limits)
    assert not limits.passed(ASKED)
    for _ in range(3):
        time.sleep(0.3)  # longer than the limit
        beating.add_moved(1)
        beating.beat(7)
        assert not limits.passed(ASKED)
    assert passes(limits)


def test_a_download_before_the_first_step_is_not_waited_for(limits: Deadlines) -> None:
    beating = heartbeat(limits)
    assert not limits.passed(ASKED)
    time.sleep(0.3)
    beating.add_moved(1)
    beating.beat(0)
    assert limits.passed(ASKED)


def test_heartbeats_without_bytes_are_not_waited_for(limits: Deadlines) -> None:
    beating = heartbeat(limits)
    assert not limits.passed(ASKED)
    time.sleep(0.3)
    beating.beat(8)
    assert limits.passed(ASKED)


def test_bytes_of_an_earlier_attempt_do_not_count(limits: Deadlines) -> None:
    beating = heartbeat(limits, attempt=2)
    assert not limits.passed(ASKED)
    time.sleep(0.3)
    beating.add_moved(1)
    beating.beat(8)
    assert limits.passed(ASKED)


def test_a_driver_that_gets_no_heartbeats_does_not_wait_longer(limits: Deadlines) -> None:
    """As when the link to the workers is down: bytes that the driver does not hear of do not count."""
    heartbeat(limits).beat(7)
    assert not limits.passed(ASKED)
    assert passes(limits)


def test_a_model_that_is_finished_in_a_store_is_not_waited_for_without_end(
    limits: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `storage.url`, the model reaches the run's folder only after the attempt."""
    monkeypatch.setattr(deadlines, "UNWIND_S", 0.2)
    beating = heartbeat(limits)
    beating.beat(7)
    assert not limits.passed([])
    time.sleep(0.3)
    assert not limits.passed([])
    beating.finish(8)
    assert not limits.passed([])
    time.sleep(0.3)
    assert limits.passed([])
