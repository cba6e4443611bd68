"""P2: training with all durability on and with all of it off: the cost of checkpoints, metrics and heartbeats.

Side A saves a checkpoint every two seconds. Both sides run on Ray with two workers on all cores, and must produce the
same weights. The replay check, which runs once per training, is measured by row N2.
"""

from typing import Any

from benchmarks.harness.row import Claim, Outcome, Row, Workspace
from training.attempts.job import TrainingJob

_EVERY_S = 2.0


def prepare(workspace: Workspace) -> None:
    """Prepare the dataset version."""
    _job(workspace, {})


def durable(workspace: Workspace) -> Outcome:
    """A: checkpoints, a metric point per step and heartbeats, and the driver sends the points to MLflow."""
    from benchmarks.baselines.on_ray import launch_on_ray
    from tasks.trackers.mlflow_store import connect
    from tasks.trackers.publisher import Publisher
    from training.attempts.metrics import MetricsFile
    from training.storage.paths import Home

    job = _job(
        workspace, {"checkpoint": {"every_s": _EVERY_S, "replay": False}, "tracking": {"log_every_steps": 1}}
    )
    client = connect(None, Home(workspace.own / "home"))
    run_id = client.create_run(client.create_experiment("bench")).info.run_id
    publisher = Publisher(lambda: (client, run_id), MetricsFile(job.paths.metrics), outage_s=60)
    with publisher.running():
        trained = launch_on_ray(job)
    return _outcome(job, trained)


def bare(workspace: Workspace) -> Outcome:
    """B: none of these."""
    from benchmarks.baselines import undurable
    from benchmarks.baselines.on_ray import launch_on_ray
    from training.ray_cluster import ray_train

    ray_train.run_ray_worker = undurable.run_ray_worker  # type: ignore[attr-defined]
    # Without heartbeats the watchdog would consider the workers stuck, so its timeout is an hour.
    off = {"every_s": 3600.0, "replay": False}
    job = _job(workspace, {"checkpoint": off, "failure": {"worker_start_timeout_s": 3600.0}})
    return _outcome(job, launch_on_ray(job))


def _outcome(job: TrainingJob, trained: Any) -> Outcome:
    from benchmarks.baselines.trainings import steady_rows_per_s, what_was_done

    return Outcome({"rows_per_s": steady_rows_per_s(job.paths, trained)}, what_was_done(trained))


def _job(workspace: Workspace, settings: dict[str, Any]) -> TrainingJob:
    from benchmarks.baselines.trainings import job_of, version_of

    same = {
        "training": {"epochs": workspace.pick(3, 3, 2), "global_batch_size": 128, "select": "last"},
        "scaling": {"num_workers": 2},
    }
    version = version_of(workspace.data, workspace.pick(2560, 1280, 512))
    return job_of(workspace.own / "home", version, "resnet", same | settings)


ROW = Row(
    id="P2",
    sides={"a": durable, "b": bare},
    claims=(
        Claim(
            "P2",
            "checkpoint every 2 s, metrics and heartbeats / none of them",
            of="rows_per_s",
            unit="rows/s",
            goal=0.98,
            at_least=True,
        ),
    ),
    prepare=prepare,
    same=("rows", "checksums", "weights"),
    others=(),
    warm_up=False,
)
