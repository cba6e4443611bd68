"""The tracker `csv_file`: a file with a line for each value. A module of the product."""

import csv
from collections.abc import Sequence
from typing import IO

from tasks.trackers.base import RunInfo, Status
from training.attempts.metrics import Point


class CsvFile:
    """Writes a run's points to the file `points.csv` in the run's folder: step, time, name and value."""

    library = "csv"

    def __init__(self) -> None:
        self._file: IO[str] | None = None

    def begin(self, run: RunInfo) -> str:
        """Begin the file again, as all points are sent again."""
        run.folder.mkdir(parents=True, exist_ok=True)
        path = run.folder / "points.csv"
        self._file = path.open("w", newline="")
        return str(path)

    def points(self, batch: Sequence[Point]) -> None:
        """Append the points."""
        assert self._file is not None
        rows = (
            (point.step, point.at, name, value) for point in batch for name, value in point.values.items()
        )
        csv.writer(self._file).writerows(rows)
        self._file.flush()

    def end(self, status: Status) -> None:
        """Close the file."""
        del status
        assert self._file is not None
        self._file.close()
