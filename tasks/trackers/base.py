"""Trackers beside MLflow: programs in which people follow the metric points of a run, such as TensorBoard.

MLflow gets the points of every run: the registry and `evergreen verify` rely on it. The setting `tracking.also` names
further trackers. To add a tracker: one file here, one line in :data:`TRACKERS`, the name in `tracking.also`, and a test
file that runs the contract of `tests/tasks/trackers/tracker_contract.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from training.attempts.metrics import Point

TRACKERS = {"tensorboard": "tasks.trackers.tensorboard:TensorBoard"}
Status = Literal["FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True)
class RunInfo:
    """The run that a tracker shows; `settings` hold no credentials, `folder` is the run's own."""

    recipe: str
    run_key: str
    folder: Path
    settings: dict[str, str]


class Tracker(Protocol):
    """What a tracker does. All calls come from one thread, which no training waits for.

    An exception of any call ends the tracking of the run with a warning, never the training.
    """

    def begin(self, run: RunInfo) -> str:
        """Open the run, or open it again after an interruption; returns where people find it.

        All points of the run follow, also those that an earlier start of the run has sent. The tracker shows each step
        of a metric once.
        """

    def points(self, batch: Sequence[Point]) -> None:
        """Take points in the order of their steps. No step of a metric comes twice between `begin` and `end`."""

    def end(self, status: Status) -> None:
        """Close the run; what was taken is shown from now on, whatever becomes of this process."""


def new_tracker(name: str) -> Tracker:
    """A tracker of :data:`TRACKERS`; its library is imported by `begin`."""
    module, _, kind = TRACKERS[name].partition(":")
    made: Tracker = getattr(import_module(module), kind)()
    return made
