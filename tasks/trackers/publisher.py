"""Send metric points to MLflow: each once, in batches, with retries while the server is unreachable."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tasks.trackers.mlflow_store import FIRST_PAUSE_S, LONGEST_PAUSE_S
from training.attempts.metrics import MetricsFile, Point
from training.errors import OutageError, classify
from training.storage.line_tail import LineTail

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.tracking")

# Longest time to record a failure in MLflow: the error must reach the user even if MLflow hangs.
AFTER_ERROR_S = 10.0
_MOST_POINTS = 1000  # MLflow's limit for one call


@dataclass
class Publisher:
    """Reads new metric points while workers write them; sends them to listeners and, in batches, to MLflow.

    Each point is read from the file once, unless a resumed training replaces the file.

    A point is sent to MLflow once: points that MLflow already has are read first and skipped, and each point keeps
    its own timestamp, so a batch that is sent twice gives the same rows. `begin` opens the run; it is retried while
    MLflow is unreachable.
    """

    begin: Callable[[], tuple["MlflowClient", str]]
    file: MetricsFile
    outage_s: float
    with_system_metrics: bool = False
    interval_s: float = 2.0
    _listeners: tuple[Callable[[Point], None], ...] = ()
    _stop: threading.Event = field(default_factory=threading.Event)
    _tail: LineTail[Point] = field(init=False)
    _unsent: list[Point] = field(default_factory=list)
    _heard: set[tuple[int, str, float]] = field(default_factory=set)
    _sent: set[tuple[int, str]] = field(default_factory=set)
    _run: tuple["MlflowClient", str] | None = None
    _answer_lost: bool = False
    _monitors: bool = False
    _monitor: Any = None
    _next_try: float = 0.0
    _pause: float = 0.0
    _warned_of_damage: bool = False

    def __post_init__(self) -> None:
        self._tail = self.file.tail()

    @contextmanager
    def running(
        self, *listeners: Callable[[Point], None], trackers: Sequence[Callable[[Point], None]] = ()
    ) -> Iterator[None]:
        """Publish in the background while the block runs; remaining points are sent when the block ends.

        `trackers` get all points; `listeners` get the new ones, as an earlier process has shown those that the file has
        now.

        Raises :class:`OutageError` when MLflow does not accept the remaining points within `outage_s` seconds.
        """
        self._listeners = tuple(trackers)
        with suppress(OSError):  # the thread reads the file again
            self._read_on()
        self._listeners = (*listeners, *trackers)
        self._monitors = self.with_system_metrics
        # The thread runs in a copy of this context, so that Prefect assigns listeners' log records to this task run.
        run = copy_context().run
        thread = threading.Thread(target=run, args=(self._work,), name="evergreen-metrics", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            # The block's error must reach the caller, and an interrupted run must not wait for an unreachable store.
            within(AFTER_ERROR_S, lambda: self._end(thread), self._read_on, self._send)
            raise
        self._end(thread)
        self.flush()

    def flush(self) -> None:
        """Send all points that MLflow lacks; raises :class:`OutageError` if that does not succeed in `outage_s` s."""
        deadline = time.monotonic() + self.outage_s
        pause = FIRST_PAUSE_S
        self._tail = self.file.tail()  # read all of the file again: no point of a replaced file is missed
        while True:
            try:
                self._read_on()
                return self._send()
            except Exception as error:
                known = classify(error)
                if known is None or not known.transient:
                    raise
                if time.monotonic() + pause > deadline:
                    raise OutageError(
                        f"MLflow did not accept all metrics ({known}). They are kept in {self.file.path}: "
                        "run the same command again."
                    ) from error
                log.warning("MLflow does not accept metrics (%s); trying again in %.0f s", known, pause)
            time.sleep(pause)
            pause = min(LONGEST_PAUSE_S, 2 * pause)

    def _end(self, thread: threading.Thread) -> None:
        self._stop.set()
        thread.join()
        self._monitors = False
        self._end_monitor()

    def _work(self) -> None:
        while True:
            try:
                self._read_on()
                self._try_to_send()
            except OSError as error:  # the disk is full or missing: the workers report that error
                log.debug("metric points can't be read (%s)", error)
            if self._stop.wait(self.interval_s):
                return

    def _read_on(self) -> None:
        """Read new points. Warns once about damaged ones: they stay missing unless training computes them again."""
        points = self._tail.new()
        damage = self._tail.damage
        if damage and not self._warned_of_damage:
            log.warning("%s: damaged (%s); MLflow gets the other points", self.file.path, damage)
        self._warned_of_damage = bool(damage)
        self._unsent += points
        self._tell(points)

    def _tell(self, points: list[Point]) -> None:
        for point in points:
            # A replaced file is read again, but a point that was computed again has another time.
            name = (point.step, ",".join(point.values), point.at)
            if name in self._heard:
                continue
            self._heard.add(name)
            for listener in self._listeners:
                try:
                    listener(point)
                except Exception as error:  # a failing progress display must not stop the training
                    log.debug("a progress display failed: %s", error)

    def _try_to_send(self) -> None:
        """Send unsent points, or retry later with growing pauses: the file keeps every point while MLflow is down."""
        if time.monotonic() < self._next_try:
            return
        try:
            self._send()
        except Exception as error:
            if not self._pause:
                _warn(error)
            self._pause = min(LONGEST_PAUSE_S, 2 * self._pause or FIRST_PAUSE_S)
            self._next_try = time.monotonic() + self._pause
            return
        if self._pause:
            log.info("MLflow accepts metrics again")
            self._pause = 0.0
            self._end_monitor()  # MLflow's monitor stops permanently during an outage; a new one starts below
        self._start_monitor()

    def _send(self) -> None:
        client, run_id = self._opened()
        if self._answer_lost:  # MLflow may have the last batch
            self._sent |= _already_there(client, run_id)
        from mlflow.entities import Metric  # imported after connecting, which imports MLflow under a lock

        # If an attempt restarts in an outage, a step may have two unsent points: the file has the later one.
        latest = {
            (point.step, name): (point, name, value)
            for point in self._unsent
            for name, value in point.values.items()
            if (point.step, name) not in self._sent
        }
        new = list(latest.values())
        for start in range(0, len(new), _MOST_POINTS):
            batch = new[start : start + _MOST_POINTS]
            metrics = [Metric(name, value, int(point.at * 1000), point.step) for point, name, value in batch]
            self._answer_lost = True
            client.log_batch(run_id, metrics=metrics)
            self._answer_lost = False
            self._sent |= {(point.step, name) for point, name, _ in batch}
        self._unsent.clear()

    def _opened(self) -> "tuple[MlflowClient, str]":
        if self._run is None:
            client, run_id = self.begin()
            self._sent = _already_there(client, run_id)
            self._run = client, run_id
        return self._run

    def _start_monitor(self) -> None:
        if self._monitors and self._monitor is None and self._run is not None:
            self._monitor = _system_metrics(self._run[1])

    def _end_monitor(self) -> None:
        if self._monitor is not None:
            self._monitor.finish()
            self._monitor = None


def _warn(error: Exception) -> None:
    """Log whether MLflow may accept the metrics without user action."""
    known = classify(error)
    if known is not None and known.transient:
        log.warning("MLflow does not accept metrics now; they are kept and sent later (%s)", error)
    else:
        log.warning(
            "MLflow refuses the metrics; they are kept, but the run fails when training is done unless the cause is "
            "removed (%s)",
            known or error,
        )


def within(seconds: float, *actions: Callable[[], object]) -> None:
    """Run the actions one after the other for at most `seconds`; failures and timeouts are ignored."""

    def work() -> None:
        with suppress(Exception):
            for action in actions:
                action()

    thread = threading.Thread(target=work, name="evergreen-after-error", daemon=True)
    thread.start()
    thread.join(seconds)


def _system_metrics(run_id: str) -> Any:
    """Record CPU, memory, disk and GPU use of this machine with the run, until `finish()` of the result is called."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(run_id, sampling_interval=2, samples_before_logging=5, resume_logging=True)
    monitor.start()
    return monitor


def _already_there(client: "MlflowClient", run_id: str) -> set[tuple[int, str]]:
    names = client.get_run(run_id).data.metrics
    ours = [name for name in names if not name.startswith("system/")]
    return {(metric.step, name) for name in ours for metric in client.get_metric_history(run_id, name)}
