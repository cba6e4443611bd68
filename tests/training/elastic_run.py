"""Program that trains on a Ray cluster while nodes leave and join; prints weights digest and attempts as JSON.

A program, because a process can connect to only one Ray cluster, and the other tests share theirs.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

os.environ |= {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
}

import ray
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2
from slow_runs import last_step, slow_job

from training.attempts.history import read_attempts
from training.errors import EvergreenError
from training.ray_cluster import ray_train
from training.ray_cluster.cluster import ray_cluster
from training.records import DatasetVersion, TrainedModel
from training.storage.paths import Home
from training.supervision.launch import launch

EPOCHS = 80


def grow_and_shrink(folder: Path, version: DatasetVersion) -> None:
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
    done: list[TrainedModel] = []
    thread = threading.Thread(target=lambda: done.append(launch(job)), daemon=True)
    thread.start()
    wait(lambda: last_step(job.paths.metrics) >= 10)
    cluster.remove_node(node, allow_graceful=False)  # Ray allows this only in the main thread
    wait(lambda: read_attempts(job.paths)[-1].world_size == 1)
    cluster.add_node(num_cpus=1)
    thread.join(240)
    attempts = [attempt.world_size for attempt in read_attempts(job.paths)]
    print(json.dumps({"digest": done[0].weights_digest, "world_sizes": attempts}))
    ray.shutdown()
    cluster.shutdown()


def preempt(folder: Path, version: DatasetVersion) -> None:
    """Drain the node of the only worker: only the preemption notice causes a checkpoint in the middle of an epoch."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    job = slow_job(
        Home(folder),
        version,
        workers=1,
        scaling={"cpus_per_worker": 1},
        training={"epochs": 2, "global_batch_size": 2},
        checkpoint={"every_s": 1000.0, "every_steps": None},
    )
    done: list[TrainedModel] = []
    thread = threading.Thread(target=lambda: done.append(launch(job)), daemon=True)
    thread.start()
    wait(lambda: last_step(job.paths.metrics) >= 10)
    cluster.add_node(num_cpus=1)
    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline = int(time.time() * 1000) + 8000
    accepted, why = GcsClient(address=cluster.address).drain_node(node.node_id, reason, "spot", deadline)
    if not accepted:
        raise SystemExit(why)
    wait(lambda: any(job.paths.checkpoints.glob("step-*")))
    time.sleep(8)
    cluster.remove_node(node, allow_graceful=False)
    thread.join(240)
    attempts = [attempt.first_step for attempt in read_attempts(job.paths)]
    print(json.dumps({"digest": done[0].weights_digest, "first_steps": attempts}))
    ray.shutdown()
    cluster.shutdown()


def lose_head(folder: Path, version: DatasetVersion) -> None:
    """Kill the head of a cluster at `ray.address` during a training; prints the error."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    job = slow_job(
        Home(folder),
        version,
        workers=1,
        scaling={"cpus_per_worker": 1},
        training={"epochs": 1000},
        ray={"address": cluster.address, "num_cpus": None},
    )

    def kill() -> None:
        wait(lambda: last_step(job.paths.metrics) >= 10)
        cluster.head_node.all_processes["gcs_server"][0].process.kill()

    threading.Thread(target=kill, daemon=True).start()
    try:
        with ray_cluster(job.settings):
            launch(job)
    except EvergreenError as error:
        print(json.dumps({"error": str(error), "status": error.exit_status}), flush=True)


def without_shared_disk(folder: Path, version: DatasetVersion) -> None:
    """Train on a node that sees neither the run's folder nor the dataset: empty folders are mounted over them there."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    hidden = " && ".join(f"mount -t tmpfs none {path}" for path in (folder, version.path))
    start = f"ray start --address={cluster.address} --num-cpus=2 --block"
    node = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"{hidden} && exec {start}"], stdout=sys.stderr
    )
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        wait(lambda: ray.cluster_resources().get("CPU", 0) >= 2)
        job = slow_job(
            Home(folder),
            version,
            workers=2,
            scaling={"cpus_per_worker": 1},
            training={"virtual_shards": 4, "epochs": 3},
            storage={"url": os.environ["EVERGREEN_TEST_STORE"], "node_cache": f"{folder}/cache"},
        )
        trained = launch(job)
        paths = [str(path.relative_to(folder)) for path in folder.rglob("step-*")]
        print(json.dumps({"digest": trained.weights_digest, "checkpoints_here": paths}))
        ray.shutdown()
    finally:
        node.terminate()
        node.wait()
        cluster.shutdown()


def wait(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("waited in vain")
        time.sleep(0.1)


if __name__ == "__main__":
    scenarios = {
        "elastic": grow_and_shrink,
        "preemption": preempt,
        "storage": without_shared_disk,
        "head": lose_head,
    }
    scenario = scenarios[sys.argv[1]]
    scenario(Path(sys.argv[2]), DatasetVersion.model_validate_json(Path(sys.argv[3]).read_text()))
