"""The contract of a tracker, for `csv_file.py`. A test file of the product."""

import csv

from tracker_contract import Shown, TrackerContract

from tasks.trackers.base import RunInfo


class TestCsvFile(TrackerContract):
    name = "csv_file"

    def shown(self, run: RunInfo) -> Shown:
        series: Shown = {}
        file = run.folder / "points.csv"
        for step, at, name, value in csv.reader(file.read_text().splitlines() if file.is_file() else []):
            series.setdefault(name, []).append((int(step), float(value), float(at)))
        return series
