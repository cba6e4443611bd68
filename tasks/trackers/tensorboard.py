"""TensorBoard tracker: writes event files to a run's folder `tensorboard`.

`tensorboard --logdir EVERGREEN_HOME/runs` shows them.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.trackers.base import RunInfo, Status
from training.attempts.metrics import Point

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

# Seconds between writes to the event file. Points that a killed process had not written are sent at the next start.
_FLUSH_S = 1


class TensorBoard:
    """Writes a run's points as scalars with the points' own timestamps, and the run's settings as text."""

    library = "tensorboardX"

    def __init__(self) -> None:
        self._writer: SummaryWriter | None = None

    def begin(self, run: RunInfo) -> str:
        """Open a new event file that hides the points in the run's earlier ones; returns the folder."""
        for slow in ("torch", "comet_ml"):
            sys.modules[slow] = None  # type: ignore[assignment]  # tensorboardX imports both where they are installed
        from tensorboardX import SummaryWriter

        folder = run.folder / "tensorboard"
        self._writer = SummaryWriter(str(folder), purge_step=0, flush_secs=_FLUSH_S)
        rows = [f"| `{name}` | `{value}` |" for name, value in run.settings.items()]
        self._writer.add_text("settings", "\n".join(["| setting | value |", "| --- | --- |", *rows]), 0)
        return str(folder)

    def points(self, batch: Sequence[Point]) -> None:
        """Write the points to the event file."""
        assert self._writer is not None
        for point in batch:
            for name, value in point.values.items():
                self._writer.add_scalar(name, value, point.step, walltime=point.at)

    def end(self, status: Status) -> None:
        """Write the run's final status, and close the event file."""
        assert self._writer is not None
        self._writer.add_text("status", status, 0)
        self._writer.close()
