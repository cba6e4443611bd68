"""Trackers in addition to MLflow: programs that show the metric points of a run, such as TensorBoard.

MLflow always gets the points of every run, because the registry and `evergreen verify` rely on MLflow. The setting
`tracking.also` names further trackers. To add a tracker: one file here, one line in :data:`training.seams.TRACKERS`,
and a test file that runs the contract of `tests/tasks/trackers/tracker_contract.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from training.attempts.metrics import Point
from training.seams import TRACKERS, part_named

Status = Literal["FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True)
class RunInfo:
    """The run that a tracker shows. `folder` is the run's folder; `settings` have no credentials."""

    recipe: str
    run_key: str
    folder: Path
    settings: dict[str, str]


class Tracker(Protocol):
    """Interface of a tracker. One background thread makes all calls; training does not wait for it.

    An exception in any call ends the tracking of the run with a warning; the training continues.
    """

    def begin(self, run: RunInfo) -> str:
        """Open the run, or open it again after an interruption; returns its location (a path or URL) for the user.

        After `begin`, all points of the run are sent, including points that were sent before the interruption. The
        tracker must show each step of a metric once.
        """

    def points(self, batch: Sequence[Point]) -> None:
        """Receive points in the order of their steps. Between `begin` and `end`, each step of a metric comes once."""

    def end(self, status: Status) -> None:
        """Close the run. Once `end` returns, all received points stay visible, even if this process is killed."""


def new_tracker(name: str) -> Tracker:
    """Create the tracker with this name; the tracker's library is imported only by `begin`."""
    made: Tracker = part_named(TRACKERS, name)()
    return made
