"""W&B's offline files, read as `wandb sync` reads them; and servers that do not answer."""

import json
import logging
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from killed_training import kill_a_training
from tracker_contract import Shown, TrackerContract, point

from tasks.trackers import fan_out
from tasks.trackers.base import RunInfo, Status
from tasks.trackers.fan_out import FanOut, sending
from tasks.trackers.own_process import OwnProcess, TrackerProcessError
from tasks.trackers.wandb import WeightsAndBiases

pytest.importorskip("wandb", reason="install the extras by: make setup EXTRAS=all")
pytestmark = pytest.mark.frameworks

_BLOCK, _HEADER, _COMPLETE = 32768, 7, (1, 4)


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without W&B's settings; returns the user's home."""
    home = tmp_path / "user"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in (
        "WANDB_API_KEY",
        "WANDB_MODE",
        "WANDB_PROJECT",
        "NETRC",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    return home


def records(file: Path) -> Iterator[Any]:
    """The records of a `.wandb` file: a header, then LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, start, parts = file.read_bytes(), _HEADER, list[bytes]()
    while start + _HEADER <= len(content):
        if (left := _BLOCK - start % _BLOCK) < _HEADER:
            start += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, start)
        start += _HEADER + length
        if start > len(content):
            return
        parts.append(content[start - length : start])
        if kind in _COMPLETE:
            yield Record.FromString(b"".join(parts))
            parts.clear()


def history(file: Path) -> list[dict[str, Any]]:
    rows = (record.history.item for record in records(file) if record.HasField("history"))
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows
    ]


class TestWeightsAndBiases(TrackerContract):
    name = "wandb"

    def shown(self, run: RunInfo) -> Shown:
        """What W&B has after the upload of all folders: the lines of an upload replace those at the same positions."""
        lines: list[dict[str, Any]] = []
        for file in sorted(run.folder.glob("wandb/offline-run-*/*.wandb")):
            rows = history(file)
            lines[: len(rows)] = rows
        metrics: Shown = {}
        for row in lines:
            for name in row.keys() - {"_step", "_timestamp", "_runtime"}:
                metrics.setdefault(name, []).append((row["_step"], float(row[name]), row["_timestamp"]))
        return metrics

    def test_the_location_names_the_command_that_uploads(self, run: RunInfo) -> None:
        tracker = OwnProcess(self.name)
        location = tracker.begin(run)
        tracker.end("FINISHED")
        (folder,) = run.folder.glob("wandb/offline-run-*")
        assert location == f"offline; `wandb sync {folder}` uploads it"

    def test_only_settings_and_points_are_kept(self, run: RunInfo) -> None:
        tracker = OwnProcess(self.name)
        tracker.begin(run)
        tracker.points([point(1, loss=1.0)])
        tracker.end("FAILED")
        (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
        (opened,) = [record.run for record in records(file) if record.HasField("run")]
        assert (opened.run_id, opened.project, opened.display_name) == ("a" * 32, "digits", "run")
        assert not opened.host
        assert not opened.HasField("git")
        assert {item.key for item in opened.config.update} == {"recipe", "run_key", "training", "_wandb"}
        (ended,) = [record.exit for record in records(file) if record.HasField("exit")]
        assert ended.exit_code == 1
        kinds = {record.WhichOneof("record_type") for record in records(file)}
        assert not kinds & {"output", "output_raw", "stats", "environment", "artifact"}
        assert not [path for path in (file.parent / "files").rglob("*") if path.suffix in (".py", ".json")]

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
        assert set(psutil.Process().children(recursive=True)) <= before

    def test_points_stay_when_the_training_process_is_killed(self, run: RunInfo) -> None:
        kill_a_training(run.folder, self.name)
        assert [step for step, _, _ in self.shown(run)["loss"]] == [1, 2]


class ServerRun:
    """A run of W&B on a server, as far as the tracker uses it: each step is taken once, older steps are dropped."""

    offline = disabled = False

    def __init__(self, rows: list[dict[str, float]]) -> None:
        self.rows = rows
        self.step = int(rows[-1]["_step"]) + 1 if rows else 0

    def log(self, values: dict[str, float], step: int, commit: bool) -> None:
        assert commit
        if step >= self.step:
            self.rows.append({**values, "_step": step})
            self.step = step + 1

    def finish(self, _exit_code: int) -> None:
        pass


@pytest.mark.parametrize("ended", ["KILLED", "FAILED"])
def test_a_run_that_ends_between_two_points_of_a_step_loses_no_value(
    ended: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [point(1, loss=2.0), point(2, loss=1.0), point(2, validation=1.5), point(3, loss=0.5)]
    rows: list[dict[str, float]] = []
    for received, status in ((whole[:2], ended), (whole, ended), (whole, "FINISHED")):
        tracker = WeightsAndBiases()
        run = ServerRun(rows)
        monkeypatch.setattr(tracker, "_run", run)
        monkeypatch.setattr(tracker, "_next_step", run.step)
        for metric_point in received:
            tracker.points([metric_point])
        tracker.end(status)
    assert [(row["_step"], row.get("loss"), row.get("validation")) for row in rows] == [
        (1, 2.0, None),
        (2, 1.0, 1.5),
        (3, 0.5, None),
    ]


def test_a_server_that_does_not_answer_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """W&B waits 90 s for its server. The run ends before, and so do W&B's processes."""
    monkeypatch.setattr(fan_out, "END_S", 0.1)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    before = set(psutil.Process().children(recursive=True))
    run = RunInfo("digits", "a" * 64, tmp_path / "run", {})
    with socket.create_server(("127.0.0.1", 0)) as silent, caplog.at_level(logging.WARNING):
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with sending([FanOut("wandb", OwnProcess("wandb"), run)]) as (listener,):
            listener(point(1, loss=1.0))
            silent.accept()  # a request, which gets no response
        for thread in [thread for thread in threading.enumerate() if thread.name == "evergreen-wandb"]:
            thread.join(60)
        assert "wandb did not accept the last points within 0.1 s" in caplog.text
        assert "wandb failed and gets no more points" in caplog.text
    _, left = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=60)
    assert not left


def test_a_server_that_refuses_the_connection_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    tracker = OwnProcess("wandb")
    with pytest.raises(TrackerProcessError, match="CommError"):
        tracker.begin(RunInfo("digits", "a" * 64, tmp_path / "run", {}))
