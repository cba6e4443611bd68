"""The contract of trackers beside MLflow: a tracker's test file inherits :class:`TrackerContract`."""

import math
import subprocess
import sys
import time
from abc import abstractmethod
from pathlib import Path

import pytest

from tasks.trackers.base import RunInfo
from tasks.trackers.own_process import OwnProcess
from training.attempts.metrics import Point
from training.seams import TRACKERS

Shown = dict[str, list[tuple[int, float, float]]]  # by metric: (step, value, seconds since 1970)


def point(step: int, **values: float) -> Point:
    return Point(step=step, total_steps=100, epoch=1, at=1.8e9 + step, values=values)


class TrackerContract:
    """Shared tests. A subclass names its tracker, and reads back what the tracker shows to a user."""

    name: str

    @abstractmethod
    def shown(self, run: RunInfo) -> Shown:
        """The metrics of the run as the tracker's own pages show them."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> RunInfo:
        return RunInfo("digits", "a" * 64, tmp_path / "run", {"training.epochs": "3"})

    @pytest.fixture
    def subject(self) -> OwnProcess:
        return OwnProcess(self.name)

    def test_points_are_shown_with_their_steps_values_and_times(
        self, subject: OwnProcess, run: RunInfo
    ) -> None:
        assert subject.begin(run)
        subject.points([point(1, loss=2.0), point(2, loss=1.0, accuracy=0.5)])
        subject.points([point(3, loss=0.5)])
        subject.end("FINISHED")
        assert self.shown(run) == {
            "loss": [(1, 2.0, 1.8e9 + 1), (2, 1.0, 1.8e9 + 2), (3, 0.5, 1.8e9 + 3)],
            "accuracy": [(2, 0.5, 1.8e9 + 2)],
        }

    def test_a_run_that_is_opened_again_shows_each_step_once(self, run: RunInfo) -> None:
        for last in (2, 4):
            tracker = OwnProcess(self.name)
            tracker.begin(run)
            tracker.points([point(step, loss=1 / step) for step in range(1, last + 1)])
            tracker.end("KILLED" if last == 2 else "FINISHED")
        assert [step for step, _, _ in self.shown(run)["loss"]] == [1, 2, 3, 4]

    def test_a_step_is_shown_soon_after_the_next_step(self, subject: OwnProcess, run: RunInfo) -> None:
        subject.begin(run)
        subject.points([point(1, loss=2.0), point(2, loss=1.0)])
        deadline = time.monotonic() + 120
        while not self.shown(run).get("loss") and time.monotonic() < deadline:
            time.sleep(0.1)
            subject.points([])
        assert self.shown(run)["loss"][0] == (1, 2.0, 1.8e9 + 1)
        subject.end("KILLED")

    def test_a_value_that_is_no_number_is_taken(self, subject: OwnProcess, run: RunInfo) -> None:
        subject.begin(run)
        subject.points([point(1, loss=math.nan), point(2, loss=1.0)])
        subject.end("FINISHED")
        assert [step for step, value, _ in self.shown(run)["loss"] if not math.isnan(value)] == [2]

    def test_a_run_without_points_ends(self, subject: OwnProcess, run: RunInfo) -> None:
        subject.begin(run)
        subject.points([])
        subject.end("FAILED")
        assert not self.shown(run).get("loss")

    def test_its_library_is_imported_when_a_run_begins(self) -> None:
        module = TRACKERS[self.name].partition(":")[0]
        code = (
            f"import sys; import tasks.trackers.base; base = set(sys.modules); import {module}; "
            "new = {name.partition('.')[0] for name in set(sys.modules) - base}; "
            "print(new - {'tasks', 'training'} - sys.stdlib_module_names)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "set()"
