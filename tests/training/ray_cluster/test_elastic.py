"""Workers join and leave with their nodes, and the weights stay the same, bit for bit."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from elastic_run import EPOCHS
from s3_server import S3Server
from slow_runs import slow_job

from training.errors import EXIT_RETRY
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch

_HERE = Path(__file__).parents[1]


def run(scenario: str, step_s: str, home: Home, version: DatasetVersion, folder: Path) -> dict[str, Any]:
    """Run :mod:`elastic_run` and return what it prints."""
    described = folder / "version.json"
    described.write_text(version.model_dump_json())
    path = os.pathsep.join(map(str, (_HERE.parents[1], _HERE.parent, _HERE)))
    with tempfile.TemporaryDirectory(prefix="eg-", dir="/tmp") as sessions:  # of Ray, which keeps them
        own = {"PYTHONPATH": path, "EVERGREEN_TEST_STEP_S": step_s, "RAY_TMPDIR": sessions}
        # A local Ray of an earlier test in this process sets it to 0, and `ray start` then refuses a second node.
        own["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "1"
        done = subprocess.run(
            [sys.executable, str(_HERE / "elastic_run.py"), scenario, str(home.root), str(described)],
            env=os.environ | own,
            stdout=subprocess.PIPE,
            timeout=400,
            check=True,
        )
    # Ray may print afterwards that the node is dead.
    result: dict[str, Any] = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith(b"{"))
    )
    return result


@pytest.mark.slow
def test_training_shrinks_with_a_lost_node_and_grows_with_a_new_one(
    home: Home, small_version: DatasetVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("elastic", "0.03", home, small_version, tmp_path)
    assert result["world_sizes"][0] == 2
    assert result["world_sizes"][-1] == 2
    assert 1 in result["world_sizes"]

    monkeypatch.setenv("EVERGREEN_TEST_STEP_S", "0")
    shards = {"virtual_shards": 4, "epochs": EPOCHS}
    calm = slow_job(Home(tmp_path / "calm"), small_version, 0, training=shards)
    assert launch(calm).weights_digest == result["digest"]


@pytest.mark.slow
def test_a_node_that_is_taken_away_is_saved_from_first(
    home: Home, small_version: DatasetVersion, tmp_path: Path
) -> None:
    result = run("preemption", "0.2", home, small_version, tmp_path)
    first, second = result["first_steps"]
    assert first == 0
    assert 10 <= second < 100  # inside the first epoch of 135 steps: saved because of the notice


@pytest.mark.slow
def test_workers_on_a_node_without_the_driver_s_disk_train_the_same_model(
    home: Home,
    small_version: DatasetVersion,
    tmp_path: Path,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this user may not create a mount namespace, which hides the driver's disk from the node")
    monkeypatch.setenv("EVERGREEN_TEST_STORE", s3_server.new_bucket())
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    result = run("storage", "0.01", home, small_version, tmp_path)
    assert result["checkpoints_here"] == []

    shards = {"virtual_shards": 4, "epochs": 3}
    calm = slow_job(Home(tmp_path / "calm"), small_version, 0, training=shards)
    assert launch(calm).weights_digest == result["digest"]


@pytest.mark.slow
def test_a_run_whose_cluster_loses_its_head_ends_before_ray_ends_the_process(
    home: Home, small_version: DatasetVersion, tmp_path: Path
) -> None:
    result = run("head", "0.05", home, small_version, tmp_path)
    assert "has not answered for 3" in result["error"]
    assert result["status"] == EXIT_RETRY
