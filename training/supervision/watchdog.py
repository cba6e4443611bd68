"""Watchdog: the driver detects hung workers, logs their stacks, and kills all workers of the attempt.

Neither Ray nor a collective operation notices a stopped process for minutes; the other workers wait for that process
without an error. Each worker writes a heartbeat (:mod:`training.attempts.heartbeat`) at most once a second. The
driver measures the time between heartbeats with its own clock, so that clocks of different machines do not matter.

While workers wait for each other's disks, and while XGBoost loads its rows, a thread sends their heartbeats: a worker
that waits for a stopped worker is then not silent. So the driver also asks for the state of a silent process.
"""

import logging
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from training.attempts.heartbeat import STACKS_SIGNAL, Beat, read_beats
from training.attempts.job import TrainingJob
from training.errors import TransientError
from training.machine import process_start

log = logging.getLogger("evergreen.watchdog")

_MEAN_GAPS = 20  # a worker is suspect when a step takes this many times the mean time of a step
_STARTS = 3  # multiple of failure.worker_start_timeout_s, which is Ray's limit for the processes alone
_STACKS_WAIT_S = 1.0
_END_TIMEOUT_S = 20.0
_REMOTE_TIMEOUT_S = 15.0
_MOST_STACK_LINES = 60
_STOPPED = "stopped"  # psutil's name of this state


@dataclass
class Watchdog:
    """Detects stuck workers of one attempt; the driver calls :meth:`look` about once a second."""

    job: TrainingJob
    _began: float = field(default_factory=time.monotonic)
    _seen: dict[int, "_Life"] = field(default_factory=dict)
    _asked: dict[int, float] = field(default_factory=dict)  # when a silent worker's state was asked, by rank
    # By rank: last heartbeat of a process that has ended.
    _gone: dict[int, Beat] = field(default_factory=dict)

    def look(self) -> None:
        """Check the heartbeats. Raises :class:`TransientError` when the workers are stuck, after killing all of them.

        Workers wait for each other, so one stuck worker stops all heartbeats, and one recent heartbeat shows that no
        worker is stuck, except a process that was stopped by a signal. Also raises :class:`TransientError` when Ray
        does not start or replace the workers in time.
        """
        now = time.monotonic()
        beats = [beat for beat in read_beats(self.job.paths) if beat.attempt == self.job.attempt]
        # Ray may replace workers that died by another number of workers.
        self._seen = {beat.rank: _Life.after(self._seen.get(beat.rank), beat, now) for beat in beats}
        lives = list(self._seen.values())
        for life in lives:
            if self._is_stopped(life, now):
                self._give_up(lives, f"worker {life.beat.rank} is stopped and sent no", life, now)
        if not all(now - life.at > self._allowed(life) for life in lives):
            return
        if any(self._state(life) is not None for life in lives):
            self._give_up(lives, "no worker sent a", max(lives, key=lambda life: life.at), now)
        self._check_start(now)

    def _allowed(self, life: "_Life") -> float:
        """Seconds that this worker may spend without a heartbeat."""
        # The first step compiles, opens the data and waits for other workers; until the second is done, the usual time
        # of a step is not known; for a network, Ray Data restarts in each epoch; torch.compile compiles each further
        # shape, such as that of an epoch's last step or of a validation.
        is_new = life.beat.step <= life.first_step or not life.beat.gap_s
        training = self.job.settings.training
        restarts = self.job.feed == "stream" and training.rows_of_step is not None
        if is_new or restarts or getattr(training, "compile", False):
            return max(self._steady(life), self.job.settings.failure.worker_start_timeout_s)
        return self._steady(life)

    def _steady(self, life: "_Life") -> float:
        """Seconds that this worker may spend without a heartbeat after its first step."""
        return max(self.job.settings.failure.hang_timeout_s, _MEAN_GAPS * life.beat.gap_s)

    def _is_stopped(self, life: "_Life", now: float) -> bool:
        """Whether a silent worker's process is stopped by a signal, also in the worker's first step.

        The process is asked at most once in :meth:`_steady` seconds.
        """
        if now - max(life.at, self._asked.get(life.beat.rank, life.at)) <= self._steady(life):
            return False
        self._asked[life.beat.rank] = now
        return self._state(life) == _STOPPED

    def _state(self, life: "_Life") -> str | None:
        """The state of a worker's process; None when the process is gone.

        A process that is known to be gone is not asked about again, unless a later heartbeat of its rank appears:
        training that continues with fewer workers leaves the last heartbeats of the others.
        """
        if self._gone.get(life.beat.rank) == life.beat:
            return None
        state, certain = _answer(life.beat, 0)
        if state is None and certain:
            self._gone[life.beat.rank] = life.beat
        return state

    def _check_start(self, now: float) -> None:
        """Check the time without any worker: Ray has not started the workers yet, or is about to replace them."""
        limit = _STARTS * self.job.settings.failure.worker_start_timeout_s
        since = max([self._began, *(life.at for life in self._seen.values())])
        if now - since > limit:
            raise TransientError(
                f"Ray did not start the workers within {limit:.0f} s, {_STARTS} times "
                "failure.worker_start_timeout_s. Raise the setting on a slow or busy machine."
            )

    def _give_up(self, lives: "list[_Life]", who: str, silent: "_Life", now: float) -> None:
        beats = [life.beat for life in lives if self._gone.get(life.beat.rank) != life.beat]
        for beat in beats:
            log.warning("%s", _state_and_stacks(self.job, beat))
        end_workers(beats)
        raise TransientError(
            f"{who} heartbeat for {now - silent.at:.0f} s after step {max(life.beat.step for life in lives)}; "
            f"what the workers were doing is in the log and in {self.job.paths.stacks}. If the workers were busy, "
            "raise failure.hang_timeout_s."
        )


@dataclass(frozen=True)
class _Life:
    """A worker's last heartbeat, when this process first saw it (by its own clock), and the worker's first step."""

    beat: Beat
    at: float
    first_step: int

    @classmethod
    def after(cls, before: "_Life | None", beat: Beat, now: float) -> "_Life":
        if before is None or before.beat.process_start != beat.process_start:
            return cls(beat, now, beat.step)
        return before if before.beat == beat else cls(beat, now, before.first_step)


def end_workers(beats: list[Beat]) -> None:
    """Send SIGKILL to the processes that wrote these heartbeats, and wait until the processes are gone.

    Processes that do not end within `_END_TIMEOUT_S` seconds are logged as warnings.
    """
    # With `scaling.num_workers` 0, this process writes the heartbeats: it must not kill itself.
    here = (os.getpid(), socket.gethostname())
    alive = [beat for beat in beats if (beat.pid, beat.host) != here and _signal(beat, signal.SIGKILL)]
    deadline = time.monotonic() + _END_TIMEOUT_S
    while alive and time.monotonic() < deadline:
        time.sleep(0.1)
        alive = [beat for beat in alive if _signal(beat, 0)]
    for beat in alive:
        log.warning("worker %d (pid %d on %s) does not end", beat.rank, beat.pid, beat.host)


def _state_and_stacks(job: TrainingJob, beat: Beat) -> str:
    """A worker's process state and the stacks of its threads, as text for the log."""
    file = job.paths.stacks / f"rank-{beat.rank}.txt"
    before = file.stat().st_size if file.is_file() else 0
    state = _signal(beat, STACKS_SIGNAL)
    head = f"worker {beat.rank} (pid {beat.pid} on {beat.host}) after step {beat.step}: "
    if state is None:
        return head + "its process is gone"
    if state == _STOPPED:
        return head + "its process is stopped (SIGSTOP or a debugger)"
    time.sleep(_STACKS_WAIT_S)
    lines = file.read_text(errors="replace")[before:].splitlines() if file.is_file() else []
    return head + "\n".join([state, *lines[:_MOST_STACK_LINES]])


def _signal(beat: Beat, signum: int) -> str | None:
    """Send a signal to a worker on any node; returns its process's state before, or None when the process is gone."""
    return _answer(beat, signum)[0]


def _answer(beat: Beat, signum: int) -> tuple[str | None, bool]:
    """Send a signal as :func:`_signal` does; returns the state, and whether the state is certain.

    When a node does not answer, the process may still run.
    """
    import ray

    # Compare host names first: after a restart of Ray, this machine has another node id.
    if beat.host == socket.gethostname() or beat.node == ray.get_runtime_context().get_node_id():
        return signal_process(beat.pid, beat.process_start, signum), True
    from ray.exceptions import TaskUnschedulableError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(beat.node, soft=False)
    remote: Any = ray.remote(num_cpus=0, max_retries=0)(signal_process)
    try:
        answer = remote.options(scheduling_strategy=strategy).remote(beat.pid, beat.process_start, signum)
        state: str | None = ray.get(answer, timeout=_REMOTE_TIMEOUT_S)
    except TaskUnschedulableError:  # the node has left the cluster
        log.warning("node %s of worker %d has left the cluster", beat.node[:8], beat.rank)
        return None, True
    except Exception as error:  # the node and its processes are gone, or Ray does not know
        log.warning(
            "node %s of worker %d does not answer (%s)", beat.node[:8], beat.rank, type(error).__name__
        )
        return None, False
    return state, True


def signal_process(pid: int, started: str, signum: int) -> str | None:
    """Send a signal to the process `pid`, unless it started at another time than `started`: pids are reused.

    `started` is from :func:`training.machine.process_start`. Returns the same as :func:`_signal`.
    """
    import psutil

    try:
        state = str(psutil.Process(pid).status())
        if process_start(pid) != started or state == psutil.STATUS_ZOMBIE:
            return None
        os.kill(pid, signum)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None
    return state
