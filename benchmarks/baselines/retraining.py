"""Run `evergreen retrain` as a user would, in a separate home."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from training.records import Release, TrainedModel
from training.storage.paths import RunPaths
from training.storage.record_files import read_record
from training.supervision.launch import finished


class Retrained(NamedTuple):
    """JSON output of the command, seconds from its start to its end, and the files that the run left."""

    release: dict[str, Any]
    seconds: float
    paths: RunPaths

    def trained(self) -> TrainedModel:
        """The record of the training."""
        model = finished(self.paths, self.release["run_key"])
        assert model is not None
        return model

    def recorded(self) -> Release:
        """The run's release record: seconds of each part as in the summary, rows, and more."""
        return read_record(self.paths.release, Release, self.paths.root.name)


def retrain(home: Path, recipe: str, settings: dict[str, str], code: Path | None = None) -> Retrained:
    """Run the command, with the checkout `code` if given. Raises RuntimeError with its output if it fails."""
    command = [sys.executable, "-m", _module_of_command(code), "retrain", recipe, "--json"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    home.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_HOME"}
    if code is not None:
        environment["PYTHONPATH"] = str(code)
    began = time.perf_counter()
    done = subprocess.run(
        command,
        env=environment | {"EVERGREEN_HOME": str(home)},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"evergreen retrain ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    release = json.loads(done.stdout.splitlines()[-1])
    return Retrained(release, seconds, RunPaths(Path(release["report"]).parent))


def _module_of_command(code: Path | None) -> str:
    """The module to execute: `flows.cli` was one file in earlier commits."""
    one_file = code is not None and (code / "flows" / "cli.py").is_file()
    return "flows.cli" if one_file else "flows.cli.main"
