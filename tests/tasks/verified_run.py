"""A finished run that recovered from a failure, made by the real flow; tests damage it and restore it."""

import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flows.retrain import retrain
from tasks.trackers.mlflow_run import connect
from tasks.verify import Finding, verify
from training.errors import TransientError
from training.records import Release
from training.storage.paths import Home, RunPaths
from training.trainers.torch.replica import Replica

EVERY_STEPS = 4
EPOCH_END = 21  # steps: 1,328 training rows, 64 per step


class Subject:
    """A home with a finished run, `paths`, and another version of its model; tests may damage and restore it."""

    def __init__(self, root: Path, backup: Path):
        self.home, self.backup = Home(root), backup
        self.release, self.paths = made(self.home, fails_at=14)
        made(self.home, training={"epochs": 1, "learning_rate": 1e-5}, gate={"floor": 0.0})
        self.client: Any = connect(None, self.home)
        shutil.copytree(root, backup)

    def restore(self) -> None:
        """Restore in place: MLflow stores absolute paths of its files, and keeps its database open."""
        for entry in self.home.root.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
        shutil.copytree(
            self.backup, self.home.root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("mlflow.db*")
        )
        with (
            closing(sqlite3.connect(self.backup / "mlflow.db")) as before,
            closing(sqlite3.connect(self.home.root / "mlflow.db")) as now,
        ):
            before.backup(now)

    def broken(self) -> set[str]:
        """The invariants that are violated now."""
        return {finding.invariant for finding in self.look() if finding.ok is False}

    def look(self, **more: Any) -> tuple[Finding, ...]:
        return verify(self.paths, self.home, **more)


def made(home: Home, fails_at: int | None = None, **sections: dict[str, Any]) -> tuple[Release, RunPaths]:
    """Retrain in `home` to the end; the first attempt fails before step `fails_at`, if given."""
    settings: dict[str, Any] = {
        "training": {"epochs": 2},
        "scaling": {"num_workers": 0},
        "tracking": {"system_metrics": False},
        "gate": {"floor": 0.5},
        "checkpoint": {"every_steps": EVERY_STEPS},
    }
    for name, section in sections.items():
        settings[name] = settings.get(name, {}) | section
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERGREEN_HOME", str(home.root))
        if fails_at is not None:
            fail_once(patch, fails_at)
        release = retrain("digits", settings)
    return release, home.run("digits", release.run_key)


def fail_once(patch: pytest.MonkeyPatch, step: int) -> None:
    """Fail once before optimizer step `step`, as for a lost worker, with a pause of 1.1 s that heartbeats record."""
    whole, failed = Replica.step, []

    def step_or_fail(self: Replica, batch: Any, epoch: int, number: int) -> Any:
        if number == step - 1 and not failed:
            time.sleep(1.1)
        if number == step and not failed:
            failed.append(step)
            raise TransientError("a lost worker")
        return whole(self, batch, epoch, number)

    patch.setattr(Replica, "step", step_or_fail)


def flip(file: Path, index: int = -1) -> None:
    content = bytearray(file.read_bytes())
    content[index] ^= 1
    file.write_bytes(content)


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a record and remove its checksum: records of earlier versions have none, so `verify` accepts that."""
    record = json.loads(file.read_text())
    record.pop("sha256_of_the_rest", None)
    change(record)
    file.write_text(json.dumps(record))


def edit_lines(file: Path, change: Callable[[list[str]], object]) -> None:
    """Like :func:`edit`, for a file of JSON lines."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    plain = [{name: record[name] for name in record if name not in ("line", "check")} for record in records]
    lines = [json.dumps(record) + "\n" for record in plain]
    change(lines)
    file.write_text("".join(lines))
