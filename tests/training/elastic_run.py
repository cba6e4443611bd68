"""A training on a Ray cluster of several nodes that loses one and gains one; prints what came of it as JSON.

Run as a program: a process talks to one Ray cluster only, and the other tests share theirs.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

os.environ |= {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
    "EVERGREEN_TEST_STEP_S": "0.01",
}

import ray
from ray.cluster_utils import Cluster
from slow_runs import last_step, slow_job

from training import ray_train
from training.attempts import read_attempts
from training.launch import launch
from training.paths import Home
from training.records import DatasetVersion

EPOCHS = 80


def main(folder: Path, version: DatasetVersion) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    ray_train._RESIZE_S = 5.0
    job = slow_job(
        Home(folder),
        version,
        workers=2,
        scaling={"min_workers": 1, "cpus_per_worker": 1},
        training={"virtual_shards": 4, "epochs": EPOCHS},
        failure={"worker_start_timeout_s": 40},
    )
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(launch(job)), daemon=True)
    thread.start()
    wait(lambda: last_step(job.paths.metrics) >= 10)
    cluster.remove_node(node, allow_graceful=False)  # of the main thread, as Ray wants it
    wait(lambda: read_attempts(job.paths)[-1].world_size == 1)
    cluster.add_node(num_cpus=1)
    thread.join(240)
    attempts = [attempt.world_size for attempt in read_attempts(job.paths)]
    print(json.dumps({"digest": done[0].weights_digest, "world_sizes": attempts}))
    ray.shutdown()
    cluster.shutdown()


def wait(condition: object, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("waited in vain")
        time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), DatasetVersion.model_validate_json(Path(sys.argv[2]).read_text()))
