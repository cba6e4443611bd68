"""One attempt on Ray Train: how many workers on what, fed by what, talking how."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from training.dataset import ray_dataset
from training.job import TrainingJob
from training.rendezvous import process_group
from training.room import room_for_workers
from training.worker import run_ray_worker

if TYPE_CHECKING:
    from ray.data import Dataset
    from ray.train import DataConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

log = logging.getLogger("evergreen.ray_train")

_RESIZE_S = 30.0  # between two looks whether more or fewer workers fit


def fit(job: TrainingJob) -> None:
    """Run all workers through Ray Train once. Raises what a worker raised, or Ray's own error."""
    from ray.train import FailureConfig, RunConfig

    settings = job.settings
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(settings.failure.worker_start_timeout_s)
    workers, share = room_for_workers(settings, job.feed)
    _say_batches(job, workers)
    datasets, data_config = _streams(job)
    asks_for_nodes = bool(settings.ray.address or settings.scaling.min_workers or datasets)
    trainer = _trainer_class(bool(datasets), asks_for_nodes, own_ray=not settings.ray.address)(
        run_ray_worker,
        train_loop_config={"job": job.model_dump_json()},
        scaling_config=_scaling(job, workers, share),
        backend_config=process_group(
            _backend(job), int(settings.failure.collective_timeout_s), _worker_environment(job)
        ),
        run_config=RunConfig(
            # A name of its own each time: Ray would take up its own record of an older attempt, ours is the log.
            name=f"attempt-{job.attempt}",
            storage_path=str(job.paths.ray),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),  # type: ignore[call-arg]  # Ray's stubs describe Train V1
        ),
        datasets=datasets,
        dataset_config=data_config,
    )
    trainer.fit()


class _Nobody:
    """Stands where Ray Train has the actor through which workers meet in `ray.train.report`, which ours never call."""

    @classmethod
    def options(cls, **_: Any) -> "type[_Nobody]":
        return cls

    @classmethod
    def remote(cls, **_: Any) -> "_Nobody":
        return cls()


@contextmanager
def _nobody_meets() -> Iterator[None]:
    from ray.train.v2._internal.execution.worker_group import state, worker_group

    starting, ending = cast(Any, worker_group), cast(Any, state)
    before = starting.SynchronizationActor, ending._shutdown_sync_actor
    starting.SynchronizationActor, ending._shutdown_sync_actor = _Nobody, lambda _: None
    try:
        yield
    finally:
        starting.SynchronizationActor, ending._shutdown_sync_actor = before


def _trainer_class(with_datasets: bool, asks_for_nodes: bool, own_ray: bool) -> "type[DataParallelTrainer]":
    """Ray's trainer whose controller runs in this thread, and that starts workers and no other process.

    Ray Train would start five, which take 2 to 3 s each of a start: the controller; an actor that manages datasets,
    where there are none; one that tells an autoscaler what is needed, which a machine of its own has not; one through
    which workers meet in `ray.train.report`; and one that gives back what was reserved for the workers when the
    controller dies. What this process reserved, Ray takes back itself when it ends. And each worker would be started
    through another process for the sake of environment variables, which a Ray of our own has inherited.
    """
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
    from ray.train.v2._internal.execution.controller import TrainController
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
    from ray.train.v2._internal.execution.worker_group import WorkerGroup
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    left_out = (
        PlacementGroupCleanerCallback if with_datasets else (PlacementGroupCleanerCallback, DatasetsCallback)
    )

    class Group(WorkerGroup):
        @staticmethod
        def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:
            if own_ray:
                return {}
            return WorkerGroup._get_worker_runtime_env(custom_runtime_env)

        def _init_train_context_on_workers(self, workers: Any, sync_actor: Any, each: dict[str, Any]) -> None:
            """Tell each worker its place, and no controller, which is no actor to ask about reports."""
            import ray

            told = [
                worker.actor.init_train_context.remote(
                    train_run_context=self._train_run_context,
                    distributed_context=worker.distributed_context,
                    synchronization_actor=sync_actor,
                    storage_context=self._storage_context,
                    worker_callbacks=self._worker_callbacks_to_propagate,
                    controller_actor=None,
                    **{name: values[number] for name, values in each.items()},
                )
                for number, worker in enumerate(workers)
            ]
            ray.get(told)

    class Controller(TrainController):
        worker_group_cls = Group

    class AsItIs(FixedScalingPolicy):
        def _send_resource_request(self) -> None:
            pass

        _maybe_send_resource_request = _cancel_resource_request = _send_resource_request

    class Trainer(DataParallelTrainer):
        def _initialize_and_run_controller(self, **given: Any) -> Any:
            if not asks_for_nodes:
                given["scaling_policy"] = AsItIs(self.scaling_config)  # type: ignore[arg-type]  # Ray's stubs describe V1
            with _nobody_meets():
                controller = Controller(**given)
                asyncio.run(controller.run())  # type: ignore[no-untyped-call]
                return controller.get_result()

        def _create_default_callbacks(self) -> list[Any]:
            callbacks = super()._create_default_callbacks()
            return [one for one in callbacks if not isinstance(one, left_out)]

    return Trainer


def _scaling(job: TrainingJob, workers: int, cpus: float) -> "ScalingConfig":
    """`workers` now; with `scaling.min_workers`, Ray changes their number as nodes come and go."""
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
    return names | ({"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {})


def _streams(
    job: TrainingJob,
) -> "tuple[dict[str, Dataset | Callable[[], Dataset]] | None, DataConfig | None]":
    """Training rows as a Ray Dataset for feed `stream`; validation rows are left out on the way."""
    if job.feed != "stream":
        return None, None
    import numpy as np
    from ray.data import ExecutionOptions
    from ray.train import DataConfig

    from training.dataset import is_validation

    share = job.settings.data.validation_share

    def learn_only(batch: Any) -> dict[str, Any]:
        keep = ~is_validation(batch["digest"], share)
        kept: dict[str, Any] = {name: values[keep] for name, values in batch.items()}
        return kept | {"digest": batch["digest"][keep].view(np.int64)}  # torch knows few unsigned types

    dataset = ray_dataset(job.dataset, "train").map_batches(learn_only)
    return {"train": dataset}, DataConfig(execution_options=ExecutionOptions(preserve_order=True))


def _say_batches(job: TrainingJob, workers: int) -> None:
    options = job.settings.training
    log.info(
        "attempt %d: world size %d, %d rows per worker and step, global batch %d%s, feed %s",
        job.attempt,
        workers,
        options.global_batch_size // workers,
        options.global_batch_size,
        f" in {options.accumulation_steps} passes" if options.accumulation_steps > 1 else "",
        job.feed,
    )
