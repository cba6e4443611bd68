"""Workers come and go with their nodes, and the weights stay the same to the last bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_run import EPOCHS
from slow_runs import slow_job

from training.launch import launch
from training.paths import Home
from training.records import DatasetVersion

_HERE = Path(__file__).parent


@pytest.mark.slow
def test_training_shrinks_with_a_lost_node_and_grows_with_a_new_one(
    home: Home, small_version: DatasetVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = tmp_path / "version.json"
    described.write_text(small_version.model_dump_json())
    path = os.pathsep.join(map(str, (_HERE.parents[1], _HERE.parent, _HERE)))
    done = subprocess.run(
        [sys.executable, str(_HERE / "elastic_run.py"), str(home.root), str(described)],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        timeout=400,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["world_sizes"][0] == 2
    assert found["world_sizes"][-1] == 2
    assert 1 in found["world_sizes"]

    monkeypatch.setenv("EVERGREEN_TEST_STEP_S", "0")
    calm = slow_job(
        Home(tmp_path / "calm"), small_version, 0, training={"virtual_shards": 4, "epochs": EPOCHS}
    )
    assert launch(calm).weights_digest == found["digest"]
