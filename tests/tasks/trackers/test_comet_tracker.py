"""Comet's archives of offline experiments, read as `comet upload` reads them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import psutil
import pytest
from killed_training import kill_a_training
from tracker_contract import Shown, TrackerContract, point

from tasks.trackers.base import RunInfo
from tasks.trackers.own_process import OwnProcess

pytest.importorskip("comet_ml", reason="install the extras by: make setup EXTRAS=all")
pytestmark = pytest.mark.frameworks


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without Comet's settings; returns the user's home."""
    home = tmp_path / "user"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("COMET_API_KEY", "COMET_PROJECT_NAME", "COMET_START_ONLINE"):
        monkeypatch.delenv(name, raising=False)
    return home


def messages(run: RunInfo) -> Iterator[dict[str, Any]]:
    """The messages of all archives, and of the run that has not ended yet."""
    contents = []
    for archive in (run.folder / "comet").glob("*.zip"):
        if archive.stat().st_size:
            with ZipFile(archive) as opened:
                contents += [opened.read(name) for name in opened.namelist() if name == "messages.json"]
    contents += [file.read_bytes() for file in run.folder.glob("comet/unfinished/*/messages.json")]
    for content in contents:
        *lines, _ = content.split(b"\n")  # the last line may be incomplete
        yield from map(json.loads, lines)


class TestComet(TrackerContract):
    name = "comet"

    def shown(self, run: RunInfo) -> Shown:
        """What Comet shows after the upload of all archives, in any order."""
        metrics: Shown = {}
        for message in messages(run):
            if message["type"] == "metric_msg":
                about, at = message["payload"]["metric"], message["payload"]["local_timestamp"] / 1000
                if about["step"] is None:
                    continue  # "process duration", which Comet itself adds
                row = (about["step"], float(about["metricValue"]), at)
                metrics.setdefault(about["metricName"], []).append(row)
        return {name: sorted(rows) for name, rows in metrics.items()}

    def test_the_location_names_the_command_that_uploads(self, run: RunInfo) -> None:
        tracker = OwnProcess(self.name)
        location = tracker.begin(run)
        tracker.end("FINISHED")
        assert f"`comet upload {run.folder}/comet/*.zip`" in location
        (archive,) = (run.folder / "comet").glob("*.zip")
        with ZipFile(archive) as opened:
            about = json.loads(opened.read("experiment.json"))
        assert about["offline_id"] == "a" * 48
        assert about["project_name"] == "digits"

    def test_only_settings_and_points_are_kept(self, run: RunInfo) -> None:
        tracker = OwnProcess(self.name)
        tracker.begin(run)
        tracker.points([point(1, loss=1.0)])
        tracker.end("FINISHED")
        kinds = {message["type"] for message in messages(run)}
        assert kinds == {"metric_msg", "parameter_msg", "log_other"}

    def test_nothing_is_left_outside_the_run(
        self, run: RunInfo, user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "work").mkdir()
        monkeypatch.chdir(tmp_path / "work")
        before = set(psutil.Process().children(recursive=True))
        tracker = OwnProcess(self.name)
        tracker.begin(run)
        tracker.points([point(1, loss=1.0)])
        tracker.end("FINISHED")
        assert {path.name for path in tmp_path.iterdir()} == {"run", "user", "work"}
        assert list(user.rglob("*")) == []
        assert list(Path.cwd().iterdir()) == []
        assert list((run.folder / "comet" / "unfinished").iterdir()) == []
        assert set(psutil.Process().children(recursive=True)) <= before

    def test_points_stay_when_the_training_process_is_killed(self, run: RunInfo) -> None:
        kill_a_training(run.folder, self.name)
        assert [step for step, _, _ in self.shown(run)["loss"]] == [1, 2]
        tracker = OwnProcess(self.name)
        tracker.begin(run)
        tracker.points([point(step, loss=1.0) for step in (1, 2, 3)])
        tracker.end("FINISHED")
        assert [step for step, _, _ in self.shown(run)["loss"]] == [1, 2, 3]

    def test_a_damaged_record_of_archived_steps_is_set_aside(self, run: RunInfo) -> None:
        for steps in ((1, 2), (1, 2, 3)):
            tracker = OwnProcess(self.name)
            tracker.begin(run)
            tracker.points([point(step, loss=1.0) for step in steps])
            tracker.end("FINISHED")
            record = run.folder / "comet" / "archived.json"
            record.write_bytes(record.read_bytes()[:20])
        # Points of the damaged record are sent twice, and none is lost.
        assert [step for step, _, _ in self.shown(run)["loss"]] == [1, 1, 2, 2, 3]
        assert len(list(record.parent.glob("archived.json.damaged-*"))) == 1
