"""When the watchdog considers workers stuck: written heartbeats of real processes, and a simulated clock."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import psutil
import pytest
from crashes import settings
from small_runs import job_for

from training.attempts.heartbeat import STACKS_SIGNAL, Beat, read_beats
from training.attempts.job import TrainingJob
from training.errors import TransientError
from training.machine import process_start
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.storage.paths import Home
from training.supervision import watchdog
from training.supervision.watchdog import Watchdog, end_workers, signal_process

HANG_S, START_S = 4.0, 60.0
LIMITS = {"hang_timeout_s": HANG_S, "worker_start_timeout_s": START_S}
ATTEMPT = 3


@dataclass
class Watch:
    """A watchdog, its clock, and the processes that it watches."""

    job: TrainingJob
    now: float = 1000.0
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watchdog = Watchdog(self.job, self.now)

    def start(self, count: int = 1) -> None:
        """Start processes that, like real workers, survive the signal that requests their stacks."""
        for _ in range(count):
            quiet = subprocess.Popen(
                ["sleep", "1000"], preexec_fn=lambda: signal.signal(STACKS_SIGNAL, signal.SIG_IGN)
            )
            self.workers.append(quiet)

    def beat(self, step: int, gap_s: float = 0.01, rank: int = 0, attempt: int = ATTEMPT) -> None:
        """Write a worker's heartbeat after `step` steps, and let the watchdog check."""
        pid = self.workers[rank].pid
        beat = Beat(
            attempt=attempt,
            rank=rank,
            pid=pid,
            process_start=process_start(pid),
            host=socket.gethostname(),
            node="",
            step=step,
            gap_s=gap_s,
        )
        self.job.paths.beats.mkdir(parents=True, exist_ok=True)
        (self.job.paths.beats / f"rank-{rank}.json").write_text(beat.model_dump_json())
        self.watchdog.look()

    def stop(self, rank: int) -> None:
        """Send SIGSTOP to a worker, and wait until its process is stopped."""
        self.workers[rank].send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(self.workers[rank].pid).status() == psutil.STATUS_STOPPED)

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.watchdog.look()

    def check_given_up_after(self, seconds: float, match: str = "no worker sent a heartbeat") -> None:
        """Check that nothing happens for `seconds`, and that the watchdog then kills all workers."""
        since = self.now
        for share in (0.3, 0.6, 0.99):
            self.now = since
            self.after(share * seconds)
        assert [worker.poll() for worker in self.workers] == [None] * len(self.workers)
        self.now = since
        with pytest.raises(TransientError, match=match):
            self.after(1.01 * seconds)
        assert [worker.wait(60) for worker in self.workers] == [-signal.SIGKILL] * len(self.workers)


@pytest.fixture
def watch(home: Home, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    job = job_for(home, small_version, settings(failure=LIMITS)).model_copy(update={"attempt": ATTEMPT})
    watch = Watch(job)
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: watch.now, sleep=time.sleep))
    monkeypatch.setattr(watchdog, "_STACKS_WAIT_S", 0.0)
    yield watch
    for worker in watch.workers:
        worker.kill()
        worker.wait()


def test_quick_steps_have_the_hang_timeout(watch: Watch) -> None:
    watch.start()
    watch.beat(0)
    watch.beat(10, gap_s=0.01)
    watch.check_given_up_after(HANG_S, match="heartbeat for 4 s after step 10")


def test_slow_steps_have_twenty_times_their_mean(watch: Watch) -> None:
    watch.start()
    watch.beat(0)
    watch.beat(10, gap_s=1.5)
    watch.check_given_up_after(30.0)


@pytest.mark.parametrize("first", [0, 25])
def test_the_first_step_has_the_time_of_a_start(watch: Watch, first: int) -> None:
    """This also holds for the first step of an attempt that resumes from a checkpoint."""
    watch.start()
    watch.beat(first)
    watch.check_given_up_after(START_S)


def test_once_a_step_is_done_a_start_counts_no_more(watch: Watch) -> None:
    watch.start()
    watch.beat(25)
    watch.after(0.9 * START_S)
    watch.beat(26)
    watch.check_given_up_after(HANG_S)


def test_the_second_step_has_the_time_of_a_start_while_its_usual_time_is_unknown(watch: Watch) -> None:
    """Scenario: each step takes 40 s, longer than `failure.hang_timeout_s`."""
    watch.start()
    watch.beat(0, gap_s=0.0)
    watch.after(0.9 * START_S)
    watch.beat(1, gap_s=0.0)
    watch.check_given_up_after(START_S)


def test_a_replaced_worker_has_the_time_of_a_start_again(watch: Watch) -> None:
    watch.start()
    watch.beat(0)
    watch.beat(10)
    watch.workers.pop().kill()
    time.sleep(1.1)  # two processes with one pid are distinguished by their start time, in seconds
    watch.start()
    watch.beat(10)
    watch.check_given_up_after(START_S)


def test_an_epoch_of_a_stream_has_the_time_of_a_start(watch: Watch) -> None:
    """Ray Data starts again in each epoch of a network."""
    watch.watchdog.job = watch.job.model_copy(update={"feed": "stream"})
    watch.start()
    watch.beat(0)
    watch.beat(10)
    watch.check_given_up_after(START_S)


def test_a_round_of_boosted_trees_has_the_hang_timeout_with_a_stream(watch: Watch) -> None:
    """Boosted trees read their rows once, before the first round."""
    trees = Settings.model_validate({"training": {"trainer": "xgboost"}, "failure": LIMITS})
    watch.watchdog.job = watch.job.model_copy(update={"feed": "stream", "settings": trees})
    watch.start()
    watch.beat(0)
    watch.beat(10)
    watch.check_given_up_after(HANG_S)


def test_a_step_of_a_compiled_model_has_the_time_of_a_start(watch: Watch) -> None:
    """torch.compile compiles again for the shape of an epoch's last step, and for that of a validation."""
    watch.watchdog.job = watch.job.model_copy(
        update={"settings": settings(training={"compile": True}, failure=LIMITS)}
    )
    watch.start()
    watch.beat(0)
    watch.beat(10)
    watch.check_given_up_after(START_S)


def test_a_slow_healthy_worker_is_left_alone(watch: Watch) -> None:
    """Each step takes at most 19 times the mean so far; no pause within an hour is taken for a hang."""
    watch.start()
    watch.beat(0)
    watch.beat(1, gap_s=10.0)
    for step in range(2, 20):
        watch.after(190.0)
        watch.beat(step, gap_s=10.0)
    assert watch.workers[0].poll() is None


def test_one_sign_of_life_is_enough(watch: Watch) -> None:
    """The other workers wait for that worker, and are as silent as if they were stuck."""
    watch.start(3)
    for rank in range(3):
        watch.beat(0, rank=rank)
        watch.beat(10, rank=rank)
    for step in range(11, 40):
        watch.after(0.9 * HANG_S)
        watch.beat(step, rank=1)
    assert [worker.poll() for worker in watch.workers] == [None] * 3
    watch.check_given_up_after(HANG_S, match="after step 39")


@pytest.mark.parametrize("stuck", [0, 1])
def test_any_rank_may_be_the_stuck_one(watch: Watch, caplog: pytest.LogCaptureFixture, stuck: int) -> None:
    watch.start(2)
    for rank in (0, 1):
        watch.beat(0, rank=rank)
        watch.beat(10, rank=rank)
    watch.stop(stuck)
    watch.check_given_up_after(HANG_S, match=f"worker {stuck} is stopped and sent no heartbeat")
    stopped = [record.getMessage() for record in caplog.records if "its process is stopped" in record.message]
    assert len(stopped) == 1
    assert stopped[0].startswith(f"worker {stuck} (pid {watch.workers[stuck].pid} ")


@pytest.mark.parametrize("step", [0, 10])
def test_a_stopped_worker_is_found_while_a_thread_sends_the_other_ones_heartbeats(
    watch: Watch, step: int
) -> None:
    """Scenario: XGBoost loads its rows, before its first round or in the replay check."""
    watch.start(2)
    for rank in (0, 1):
        watch.beat(0, rank=rank)
        watch.beat(step, rank=rank)
    watch.stop(1)
    watch.after(0.99 * HANG_S)
    watch.beat(step, gap_s=0.011)  # differs from the heartbeat before, as that of a later second does
    assert [worker.poll() for worker in watch.workers] == [None, None]
    with pytest.raises(
        TransientError, match=f"worker 1 is stopped and sent no heartbeat for 4 s after step {step}"
    ):
        watch.after(0.02 * HANG_S)
    assert [worker.wait(60) for worker in watch.workers] == [-signal.SIGKILL] * 2


def test_a_worker_that_continues_in_time_is_left_alone(watch: Watch) -> None:
    watch.start(2)
    for rank in (0, 1):
        watch.beat(0, rank=rank)
    watch.stop(1)
    watch.after(0.9 * HANG_S)
    watch.workers[1].send_signal(signal.SIGCONT)
    wait_until(lambda: psutil.Process(watch.workers[1].pid).status() != psutil.STATUS_STOPPED)
    for _ in range(10):
        watch.after(0.9 * HANG_S)
    assert [worker.poll() for worker in watch.workers] == [None, None]


def test_workers_that_are_gone_are_rays_to_replace(watch: Watch) -> None:
    watch.start(2)
    for rank in (0, 1):
        watch.beat(0, rank=rank)
        watch.beat(10, rank=rank)
    for worker in watch.workers:
        worker.kill()
        worker.wait()
    watch.after(HANG_S * 2)
    watch.after(3 * START_S - HANG_S * 3)
    with pytest.raises(TransientError, match="Ray did not start the workers within 180 s"):
        watch.after(HANG_S * 2)


def test_a_worker_that_is_gone_is_asked_about_once_until_another_takes_its_rank(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: elastic training continues with fewer workers."""
    asked: list[int] = []

    def noted(pid: int, started: str, signum: int) -> str | None:
        asked.append(pid)
        return signal_process(pid, started, signum)

    monkeypatch.setattr(watchdog, "signal_process", noted)
    watch.start(2)
    for rank in (0, 1):
        watch.beat(0, rank=rank)
        watch.beat(10, rank=rank)
    gone = watch.workers[1].pid
    watch.workers[1].kill()
    watch.workers[1].wait()
    for step in range(11, 21):
        watch.after(0.9 * HANG_S)
        watch.beat(step)
    assert asked == [gone]
    time.sleep(1.1)  # two processes with one pid are distinguished by their start time, in seconds
    watch.start()
    watch.workers.pop(1)
    watch.beat(10, rank=1)
    watch.stop(1)
    watch.check_given_up_after(HANG_S, match="worker 1 is stopped and sent no heartbeat")


def warnings_about_a_silent_worker_elsewhere(watch: Watch, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Worker 1 on a node that Ray does not have is silent, while worker 0 takes 8 steps."""
    watch.start(2)
    for rank in (0, 1):
        watch.beat(0, rank=rank)
    beat = read_beats(watch.job.paths)[1].model_copy(update={"host": "elsewhere", "node": "ab" * 28})
    (watch.job.paths.beats / "rank-1.json").write_text(beat.model_dump_json())
    for step in range(1, 9):
        watch.after(0.9 * HANG_S)
        watch.beat(step)
    return [record.getMessage() for record in caplog.records if record.name == "evergreen.watchdog"]


@pytest.mark.usefixtures("ray_session")
def test_a_node_that_left_the_cluster_is_asked_about_once(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    told = warnings_about_a_silent_worker_elsewhere(watch, caplog)
    assert told == ["node abababab of worker 1 has left the cluster"]


@pytest.mark.usefixtures("ray_session")
def test_a_node_that_does_not_answer_in_time_is_asked_again(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stopped worker on a busy node must not be forgotten."""
    import ray

    def late(*_: object, **__: object) -> None:
        raise ray.exceptions.GetTimeoutError

    monkeypatch.setattr(ray, "get", late)
    told = warnings_about_a_silent_worker_elsewhere(watch, caplog)
    assert set(told) == {"node abababab of worker 1 does not answer (GetTimeoutError)"}
    assert len(told) > 1


def test_workers_that_never_come_are_waited_for_three_starts(watch: Watch) -> None:
    watch.check_given_up_after(3 * START_S, match="Ray did not start the workers within 180 s")


def test_an_older_attempts_signs_do_not_count(watch: Watch) -> None:
    watch.start()
    watch.beat(10, attempt=ATTEMPT - 1)
    watch.after(START_S * 2)
    assert watch.workers[0].poll() is None
    with pytest.raises(TransientError, match="Ray did not start the workers"):
        watch.after(START_S + 1)
    assert watch.workers[0].poll() is None


def test_a_later_process_with_the_same_pid_gets_no_signal(watch: Watch) -> None:
    watch.start()
    pid = watch.workers[0].pid
    boot, ticks = (process_start(pid) or "").split("/")
    for other in (f"{boot}/{int(ticks) - 1}", f"another boot/{ticks}"):
        assert signal_process(pid, other, signal.SIGKILL) is None
    assert watch.workers[0].poll() is None
    assert signal_process(pid, f"{boot}/{ticks}", signal.SIGKILL) is not None
    assert watch.workers[0].wait(60) == -signal.SIGKILL
    assert signal_process(pid, f"{boot}/{ticks}", 0) is None


def test_a_hung_worker_is_found_after_the_clock_was_set(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set clock moves the time of the boot, from which psutil computes when a process started."""
    watch.start()
    watch.beat(10)
    watch.beat(11)
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: time.time() - 3600)
    watch.check_given_up_after(HANG_S)


def test_a_process_does_not_end_itself(watch: Watch) -> None:
    """Scenario: a training in this very process was interrupted, and continues with workers."""
    watch.start()
    watch.beat(10)
    (beat,) = read_beats(watch.job.paths)
    mine = {"pid": os.getpid(), "process_start": process_start(os.getpid())}
    end_workers([beat.model_copy(update=mine), beat])
    assert watch.workers[0].wait(60) == -signal.SIGKILL


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
