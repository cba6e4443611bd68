"""Interface of trackers in addition to MLflow: programs that show the metric points of a run, such as TensorBoard.

MLflow always gets the points of every run, because the registry and `evergreen verify` rely on MLflow. The setting
`tracking.also` names further trackers. To add a tracker: one file here, one line in :data:`training.seams.TRACKERS`,
and a test file that runs the contract of `tests/tasks/trackers/tracker_contract.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from training.attempts.metrics import Point

Status = Literal["FINISHED", "FAILED", "KILLED"]
END_S = 10.0  # seconds after the training in which a tracker must take the last points and close the run


@dataclass(frozen=True)
class RunInfo:
    """The run that a tracker shows. `folder` is the run's folder; `settings` contain no credentials."""

    recipe: str
    run_key: str
    folder: Path
    settings: dict[str, str]


class Tracker(Protocol):
    """Interface of a tracker. Each tracker runs in a separate process; training does not wait for this process.

    An exception in any call ends the tracking of the run with a warning; the training continues. The process is killed
    when it has not taken the last points and closed the run within :data:`END_S` seconds after the training.
    """

    def begin(self, run: RunInfo) -> str:
        """Open the run, or open the run again after an interruption; returns text for the user that tells its location.

        After `begin`, all points of the run are sent, including points that were sent before the interruption. The
        tracker must show each step of a metric once.
        """

    def points(self, batch: Sequence[Point]) -> None:
        """Receive points in the order of their steps. Between `begin` and `end`, each step of a metric is sent once."""

    def end(self, status: Status) -> None:
        """Close the run. Once `end` returns, all received points stay visible, even if this process is killed.

        A tracker that takes each step only once may leave out the newest step of a run that was killed or failed.
        """


class TrackerClass(Protocol):
    """Attributes of the class of a tracker, which :data:`training.seams.TRACKERS` names.

    `library` is the import name of the tracker's library, which `begin` imports. `plan`, `retrain` and `tune` refuse
    the tracker if the library is not installed.
    """

    library: str

    def __call__(self) -> Tracker: ...
