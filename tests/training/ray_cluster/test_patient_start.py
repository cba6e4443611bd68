"""Ray on a machine too busy for Ray's own time limits: wait for Ray's processes instead of starting them again."""

import json
import os
import subprocess
import sys
import tempfile

import pytest

from training.ray_cluster import patches

# Each process of Ray is stopped at its start, and continued once the log says that Evergreen waits for it.
_BUSY = """
import json, logging, signal, subprocess
from pathlib import Path
from training.ray_cluster import patient_start
from training.ray_cluster.cluster import ray_cluster
from training.settings.schema import Settings

patient_start._SAY_S, patient_start._LOOK_S = 0.1, 1
stopped, said, started = [], [], []

class Waited(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
        while "waiting up to" in said[-1] and stopped:
            stopped.pop().send_signal(signal.SIGCONT)

class Slow(subprocess.Popen):
    def __init__(self, command, **options):
        super().__init__(command, **options)
        self.send_signal(signal.SIGSTOP)
        started.append(Path(command[0]).name)
        stopped.append(self)

logging.getLogger("evergreen.cluster").addHandler(Waited())
import ray
from ray._private import services
services.ConsolePopen = Slow
with ray_cluster(Settings.model_validate({"ray": {"num_cpus": 1}})):
    alive = [node["Alive"] for node in ray.nodes()]
print(json.dumps({"started": started, "alive": alive, "stopped": len(stopped), "said": said}))
"""


@pytest.mark.skipif(
    not patches.active(),
    reason="without the hook started_processes, a start of Ray that takes more than 30 s is repeated",
)
@pytest.mark.slow
def test_processes_that_stand_still_longer_than_rays_limit_are_waited_for() -> None:
    with tempfile.TemporaryDirectory(prefix="eg-", dir="/tmp") as folder:  # a short path for Unix sockets
        limits = {"RAY_gcs_server_port_wait_time_s": "1", "RAY_raylet_start_wait_time_s": "1"}
        done = subprocess.run(
            [sys.executable, "-c", _BUSY],
            env=os.environ | limits | {"RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["started"], report["alive"], report["stopped"]) == (["gcs_server", "raylet"], [True], 0)
    assert len(report["said"]) >= 2  # at least once for each process
    assert {"waiting up to 300 s for it" in line for line in report["said"]} == {True}
