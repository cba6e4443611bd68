"""Send metric points to the trackers of `tracking.also`; training does not wait for them."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from tasks.trackers.base import END_S, RunInfo, Status, Tracker
from tasks.trackers.own_process import OwnProcess
from training.attempts.metrics import MetricsFile, Point
from training.errors import StopRequestedError
from training.plan import RunPlan
from training.redaction import redact
from training.settings.overrides import describe
from training.supervision.launch import finished

log = logging.getLogger("evergreen.tracking")


class FanOut:
    """Sends each step of each metric to one tracker, only once. A tracker that fails gets no more points."""

    def __init__(self, name: str, tracker: Tracker, run: RunInfo):
        self.name, self._tracker, self._run = name, tracker, run
        self._waiting: SimpleQueue[Point | Status] = SimpleQueue()
        self._sent: set[tuple[int, str]] = set()
        self._thread = threading.Thread(target=self._work, name=f"evergreen-{name}", daemon=True)

    def __call__(self, point: Point) -> None:
        """Put a point into the queue of the tracker's thread; never blocks."""
        self._waiting.put(point)

    def start(self) -> None:
        """Start to send points in the background."""
        self._thread.start()

    def end(self, status: Status) -> None:
        """Put the final status of the run into the queue, after all points; never blocks."""
        self._waiting.put(status)

    def wait(self, until: float) -> None:
        """Wait for the end of the tracker up to the time `until` of `time.monotonic()`, then give the tracker up."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            log.warning("tracking.also: %s did not accept the last points within %g s", self.name, END_S)
            if isinstance(self._tracker, OwnProcess):
                self._tracker.kill()

    def _work(self) -> None:
        try:
            log.info("%s: %s", self.name, self._tracker.begin(self._run))
            ended: Status | None = None
            while ended is None:
                batch, ended = self._next_batch()
                if batch:
                    self._tracker.points(batch)
            self._tracker.end(ended)
        except Exception as error:
            log.warning(
                "tracking.also: %s failed and gets no more points (%s: %s); all points are in %s and in MLflow",
                self.name, type(error).__name__, redact(str(error)), self._run.folder / "metrics.jsonl",
            )  # fmt: skip

    def _next_batch(self) -> tuple[list[Point], Status | None]:
        """Wait for a point, then return all queued points; with the final status of the run once the run has ended."""
        batch: list[Point] = []
        item: Point | Status = self._waiting.get()
        while isinstance(item, Point):
            values = {
                name: value for name, value in item.values.items() if (item.step, name) not in self._sent
            }
            self._sent |= {(item.step, name) for name in values}
            if values:
                batch.append(item.model_copy(update={"values": values}))
            try:
                item = self._waiting.get_nowait()
            except Empty:
                return batch, None
        return batch, item


@contextmanager
def also_tracked(plan: RunPlan) -> Iterator[list[FanOut]]:
    """Run the trackers that `tracking.also` names while the block runs; yields their :class:`FanOut` objects."""
    settings = {name: redact(str(value)) for name, value in describe(plan.settings).items()}
    run = RunInfo(plan.recipe.name, plan.run_key, plan.paths.root, settings)
    fans = [FanOut(name, OwnProcess(name), run) for name in plan.settings.tracking.also]
    with sending(fans, lambda: finished(plan.paths, plan.run_key) is not None) as trackers:
        yield trackers


def send_all(file: MetricsFile, trackers: list[FanOut]) -> None:
    """Send all points of a finished training; each tracker leaves out those that it has already."""
    for point in file.read():
        for tracker in trackers:
            tracker(point)


@contextmanager
def sending(
    trackers: list[FanOut], is_finished: Callable[[], bool] = lambda: False
) -> Iterator[list[FanOut]]:
    """Send points in the background while the block runs; then wait up to :data:`END_S` seconds for all trackers.

    `is_finished` says after an error whether the training has finished: then the trackers' run has finished, too, as
    when MLflow did not accept the last points.
    """
    for tracker in trackers:
        tracker.start()
    status: Status = "FINISHED"
    try:
        yield trackers
    except BaseException as error:
        stopped = isinstance(error, StopRequestedError) or not isinstance(error, Exception)
        status = "FINISHED" if is_finished() else "KILLED" if stopped else "FAILED"
        raise
    finally:
        for tracker in trackers:
            tracker.end(status)
        until = time.monotonic() + END_S
        for tracker in trackers:
            tracker.wait(until)
