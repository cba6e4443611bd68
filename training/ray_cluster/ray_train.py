"""Runs one attempt on Ray Train: chooses the number of workers, their resources and collective backend."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from training.attempts.fence import newest_attempt
from training.attempts.job import TrainingJob
from training.network_addresses import INTERFACE
from training.ray_cluster import patches
from training.ray_cluster.capacity import capacity_for_workers
from training.ray_cluster.cluster import connection, head_is_gone
from training.ray_cluster.controller import controller_host, start_host
from training.ray_cluster.driver_link import driver_link
from training.ray_cluster.ray_worker import run_ray_worker
from training.ray_cluster.rendezvous import process_group
from training.ray_cluster.stored_datasets import publish
from training.ray_cluster.stored_initial_weights import publish_initial
from training.ray_cluster.streams import streams
from training.records import DatasetVersion
from training.storage.objects.base import open_store

if TYPE_CHECKING:
    from ray.train import ScalingConfig

log = logging.getLogger("evergreen.ray_train")

# By driver: ids of the placement groups that were there before its first attempt.
_before_driver: dict[str, set[str]] = {}
_RESIZE_S = 30.0  # seconds between Ray Train's checks whether more or fewer workers fit


def fit(job: TrainingJob) -> None:
    """Run one attempt with all workers on Ray Train. Raises the error of a worker, or Ray's own error.

    Raises :class:`training.ray_cluster.capacity.NoCapacityError` when the workers do not fit the cluster.
    """
    settings, rows = job.settings, upload_inputs(job)
    own_ray = not settings.ray.address
    start_host(own_ray)  # the host imports Ray Train at the same time as this process
    from ray.train import FailureConfig, RunConfig

    workers, share = capacity_for_workers(settings, job.feed, job.use_gpu)
    _say_batches(job, workers)
    datasets, data_config = streams(job, rows)
    asks_for_nodes = bool(settings.ray.address or settings.scaling.min_workers or datasets)
    timeout_s = settings.failure.worker_start_timeout_s
    # The controller gets this limit as an argument; in this process, the message of Ray's error reads the variable.
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(timeout_s)
    with driver_link(job) as link:
        trainer = _trainer(bool(datasets), asks_for_nodes, timeout_s, own_ray)(
            run_ray_worker,
            train_loop_config={"job": job.model_dump_json(), "link": link},
            scaling_config=_scaling(job, workers, share),
            backend_config=process_group(
                _backend(job), int(settings.failure.collective_timeout_s), _worker_environment(job)
            ),
            run_config=RunConfig(
                # A new name for each attempt: for a known name, Ray would resume from its own record of that attempt;
                # Evergreen resumes from its checkpoint log.
                name=f"attempt-{job.attempt}",
                storage_path=str(job.paths.ray),
                # Ray's stubs describe Train V1.
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),  # type: ignore[call-arg]
            ),
            datasets=datasets,
            dataset_config=data_config,
        )
        here = connection()
        # Attempts of one driver share what others had reserved before: an attempt that the driver has given up may have
        # left its workers' resources reserved.
        others = _before_driver.setdefault(job.driver, _reserved())
        _release(others)
        try:
            trainer.fit()
        except BaseException:
            # A Ray without head would not answer; a Ray that was restarted since has nothing reserved. A newer attempt,
            # for which the driver did not wait for the end of this one, releases what this one has left.
            if connection() == here and not head_is_gone() and newest_attempt(job.paths) == job.attempt:
                _release(others)
            raise


def upload_inputs(job: TrainingJob) -> DatasetVersion:
    """Upload dataset and initial weights to `storage.url`, unless they are there; returns the dataset as stored there.

    Without `storage.url`, returns the job's dataset.
    """
    if job.settings.storage.url is None:
        return job.dataset
    store = open_store(job.settings.storage.url)
    rows = publish(job.dataset, store)
    publish_initial(job, store)
    return rows


def _trainer(
    with_datasets: bool, asks_for_nodes: bool, start_timeout_s: float, own_ray: bool
) -> "Callable[..., Any]":
    """Ray's trainer: its public class, or with hooks a class whose controller runs in a process that is kept."""
    if not patches.active():
        from ray.train.torch import TorchTrainer

        return lambda *given, backend_config, **options: TorchTrainer(
            *given, torch_config=backend_config, **options
        )

    def run_controller(given: dict[str, Any]) -> Any:
        import ray

        with controller_host(own_ray) as host:
            return ray.get(host.run.remote(start_timeout_s, own_ray, given))

    return patches.hooked_trainer(run_controller, with_datasets, asks_for_nodes)


def _reserved() -> set[str]:
    """Ids of the placement groups that this Ray job has reserved, and not released. An id ends with that of its job."""
    import ray
    from ray.util.placement_group import placement_group_table

    job = ray.get_runtime_context().get_job_id()
    table: dict[str, dict[str, Any]] = placement_group_table()
    return {name for name, group in table.items() if name.endswith(job) and group["state"] != "REMOVED"}


def _release(kept: set[str]) -> None:
    """Release the placement groups of this Ray job that are not in `kept`. A Ray job runs one training at a time.

    Ray Train's controller releases its workers' placement group, unless the controller died. Ray Train's detached actor
    does so after the controller's death, but needs the API of Ray's dashboard, which does not run by default.
    """
    from ray import PlacementGroupID
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    with suppress(Exception):  # Ray is ending as well: the training's error counts
        for name in _reserved() - kept:
            log.info("releasing what was reserved for the workers")
            remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(name))))


def _scaling(job: TrainingJob, workers: int, cpus: float) -> "ScalingConfig":
    """Ray Train's scaling: a fixed number of `workers`, each with `cpus` CPUs.

    With `scaling.min_workers` below `scaling.num_workers`, Ray Train varies the number between these limits as nodes
    come and go.
    """
    from ray.train import ScalingConfig

    options = job.settings.scaling
    resources = {"CPU": cpus} | ({"GPU": options.gpus_per_worker} if job.use_gpu else {})
    fewest = options.min_workers or options.num_workers
    count: Any = workers if fewest == options.num_workers else (fewest, options.num_workers)
    return ScalingConfig(  # type: ignore[call-arg]  # Ray's stubs describe Train V1
        num_workers=count,
        elastic_resize_monitor_interval_s=_RESIZE_S,
        use_gpu=job.use_gpu,
        resources_per_worker=resources,
        placement_strategy=options.placement_strategy,
        accelerator_type=options.accelerator_type,
    )


def _backend(job: TrainingJob) -> str:
    chosen = job.settings.scaling.backend
    whole = job.settings.scaling.gpus_per_worker >= 1  # NCCL refuses two ranks on one GPU
    return chosen if chosen != "auto" else "nccl" if job.use_gpu and whole else "gloo"


def _worker_environment(job: TrainingJob) -> dict[str, str]:
    threads = str(job.settings.scaling.threads_per_worker)
    names = {"OMP_NUM_THREADS": threads, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    interface = job.settings.scaling.network_interface
    return names | ({INTERFACE: interface, "NCCL_SOCKET_IFNAME": interface} if interface else {})


def _say_batches(job: TrainingJob, workers: int) -> None:
    rows, passes = job.settings.training.rows_of_step, job.settings.training.passes_of_step
    if rows is None:
        log.info("attempt %d: world size %d, trainer %s", job.attempt, workers, job.settings.trainer)
        return
    log.info(
        "attempt %d: world size %d, %d rows per worker and step, global batch %d%s, feed %s",
        job.attempt,
        workers,
        rows // workers,
        rows,
        f" in {passes} passes" if passes > 1 else "",
        job.feed,
    )
