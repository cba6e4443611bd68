"""Ray's dashboard lists the training if the dashboard is on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.records import DatasetVersion
from training.storage.paths import Home

_HERE = Path(__file__).parents[1]
_TOKEN = "0123456789abcdef" * 4  # chosen by the user, who types it into the page


@pytest.mark.slow
def test_the_train_tab_lists_the_training(home: Home, small_version: DatasetVersion, tmp_path: Path) -> None:
    described = tmp_path / "version.json"
    described.write_text(small_version.model_dump_json())
    path = os.pathsep.join(map(str, (_HERE.parents[1], _HERE.parent, _HERE)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, str(_HERE / "dashboard_run.py"), str(home.root), str(described), _TOKEN],
        env=environment | {"PYTHONPATH": path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN},
        stdout=subprocess.PIPE,
        timeout=400,
        check=True,
    )
    listed = next(line for line in done.stdout.splitlines() if line.startswith(b"{"))
    (run,) = json.loads(listed)["train_runs"]
    assert (run["name"], run["status"]) == ("attempt-1", "FINISHED")
    (attempt,) = run["attempts"]
    assert len(attempt["workers"]) == 2
