"""Heartbeats: each worker writes its step and process id, so that the driver detects hung workers."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from training.machine import process_start
from training.records import Record
from training.storage.paths import RunPaths
from training.storage.record_files import DamagedError, read_record, record_text

STACKS_SIGNAL = signal.SIGUSR1  # a worker that receives it dumps its threads' stacks to `stacks/`


class Beat(Record):
    """A worker's last heartbeat: `step` steps are done.

    `gap_s` is the mean time of this process's steps but the first, in seconds; 0 until a second step is done. The time
    between two heartbeats of one step, as in a validation, is not counted.
    `process_start` is :func:`training.machine.process_start` of the worker's process, which distinguishes the process
    from a later one with this pid.
    `moved` is the number of bytes of checkpoints, datasets and models that the worker has read, written or transferred.
    `finished`: the worker has committed the finished model.
    """

    attempt: int
    rank: int
    pid: int
    process_start: str
    host: str
    node: str
    step: int
    gap_s: float
    moved: int = 0
    finished: bool = False


@dataclass
class Heartbeat:
    """Writes a worker's heartbeat to a file, at most once in `interval_s` seconds."""

    file: Path
    attempt: int
    rank: int
    node: str
    interval_s: float = 1.0
    moved: int = 0  # bytes, see Beat
    finished: bool = False
    _step: int | None = None  # the highest step so far
    _steps_done: int = 0  # steps that this process has finished
    _first_step_at: float = 0.0  # time of the first finished step, less _waited
    _last_step_at: float = 0.0  # time of the newest finished step, less _waited
    _waited: float = 0.0  # seconds between heartbeats of one step, as in a validation or a wait for a disk
    _newest_at: float = 0.0  # time of the newest heartbeat
    _written_at: float = 0.0  # time when the file was last written
    _identity: dict[str, object] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # threads beat while others wait

    def __post_init__(self) -> None:
        self._identity = {
            "attempt": self.attempt,
            "rank": self.rank,
            "pid": os.getpid(),
            "process_start": process_start(os.getpid()),
            "host": socket.gethostname(),
            "node": self.node,
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)

    def add_moved(self, count: int) -> None:
        """Record that `count` bytes were read, written or transferred: the worker does not hang."""
        self.moved += count

    def finish(self, step: int) -> None:
        """Record at once that the finished model is committed."""
        with self._lock:
            self.finished, self._written_at = True, -self.interval_s
            self._beat(step)

    def beat(self, step: int) -> None:
        """Record that `step` steps are done."""
        with self._lock:
            self._beat(step)

    def _beat(self, step: int) -> None:
        now = time.monotonic()
        self._note_step(step, now)
        if now - self._written_at < self.interval_s:
            return
        self._written_at = now
        gap = (self._last_step_at - self._first_step_at) / max(1, self._steps_done - 1)
        beat = Beat.model_validate(
            {**self._identity, "step": step, "gap_s": gap, "moved": self.moved, "finished": self.finished}
        )
        aside = self.file.with_suffix(".tmp")
        aside.write_text(record_text(self.file.name, beat, _run_of(self.file)), encoding="utf-8")
        aside.replace(self.file)

    def _note_step(self, step: int, now: float) -> None:
        if self._step is not None and step > self._step:
            self._steps_done += 1
            self._last_step_at = now - self._waited
            if self._steps_done == 1:  # the time before this is start-up, not part of the mean
                self._first_step_at = self._last_step_at
        elif self._step is not None:
            self._waited += now - self._newest_at
        self._newest_at, self._step = now, max(step, self._step or 0)

    @contextmanager
    def kept_beating(self, step: int) -> Iterator[None]:
        """Send heartbeats from a thread while the block waits for a disk, or for other workers' disks."""
        done = threading.Event()

        def work() -> None:
            while not done.wait(self.interval_s):
                # A disk may be full for a moment: the next heartbeat comes in a second.
                with suppress(OSError):
                    self.beat(step)

        thread = threading.Thread(target=work, name="evergreen-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _run_of(beats: Path) -> str:
    """Name of the run's folder, given a heartbeat file in it."""
    return beats.parent.parent.name


def furthest_step(paths: RunPaths) -> int:
    """The highest step in the workers' last heartbeats; 0 without heartbeats.

    A new attempt overwrites the heartbeats of the attempts before it.
    """
    return max((beat.step for beat in read_beats(paths)), default=0)


def read_beats(paths: RunPaths) -> list[Beat]:
    """The last heartbeat of each worker, of any attempt."""
    beats = []
    for file in sorted(paths.beats.glob("rank-*.json")):
        try:
            beats.append(read_record(file, Beat, _run_of(file)))
        except (OSError, DamagedError):
            continue  # removed meanwhile, or damaged: the next heartbeat comes in a second
    return beats
