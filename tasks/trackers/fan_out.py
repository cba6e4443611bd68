"""Send metric points to the trackers of `tracking.also`; training does not wait for them."""

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from queue import Empty, SimpleQueue

from tasks.trackers.base import END_S, RunInfo, Status, Tracker
from tasks.trackers.own_process import OwnProcess
from training.attempts.metrics import Point
from training.errors import StopRequestedError
from training.plan import RunPlan
from training.redaction import redact
from training.settings.overrides import describe

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

    @contextmanager
    def running(self) -> Iterator["FanOut"]:
        """Send points in the background while the block runs; then wait up to :data:`END_S` seconds for the end."""
        self._thread.start()
        status: Status = "FINISHED"
        try:
            yield self
        except BaseException as error:
            stopped = isinstance(error, StopRequestedError) or not isinstance(error, Exception)
            status = "KILLED" if stopped else "FAILED"
            raise
        finally:
            self._waiting.put(status)
            self._thread.join(END_S)
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
        found: Point | Status = self._waiting.get()
        while isinstance(found, Point):
            values = {
                name: value for name, value in found.values.items() if (found.step, name) not in self._sent
            }
            self._sent |= {(found.step, name) for name in values}
            if values:
                batch.append(found.model_copy(update={"values": values}))
            try:
                found = self._waiting.get_nowait()
            except Empty:
                return batch, None
        return batch, found


@contextmanager
def also_tracked(plan: RunPlan) -> Iterator[list[FanOut]]:
    """Run the trackers that `tracking.also` names while the block runs; yields their :class:`FanOut` objects."""
    settings = {name: redact(str(value)) for name, value in describe(plan.settings).items()}
    run = RunInfo(plan.recipe.name, plan.run_key, plan.paths.root, settings)
    with ExitStack() as stack:
        yield [
            stack.enter_context(FanOut(name, OwnProcess(name), run).running())
            for name in plan.settings.tracking.also
        ]
