"""Start a training and bring back its outcome: through Ray Train, or in this process with `num_workers` 0."""

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.cluster import cpus_per_worker
from training.dataset import ray_dataset
from training.errors import SettingError, TrainingError, causes, classify
from training.job import Attempt, TrainingJob
from training.paths import RunPaths
from training.ranks import Ranks, torch_settings_kept
from training.recipe import RecipeRef, keep_copy
from training.records import DatasetVersion, Goodput, TrainedModel
from training.settings import Settings
from training.worker import ATTEMPTS, run_ray_worker, run_worker

if TYPE_CHECKING:
    from ray.data import Dataset
    from ray.train import DataConfig, ScalingConfig

log = logging.getLogger("evergreen.launch")

_MEMORY_SHARE = 0.7  # of the machine's memory that training images may take before it is worth a warning


def launch(job: TrainingJob) -> TrainedModel:
    """Train, or go on training, until the model of `job.run_key` is finished; a finished one is returned at once.

    Raises :class:`training.errors.EvergreenError` or what Ray raises when workers are lost too often.
    """
    if (done := finished(job.paths, job.run_key)) is not None:
        log.info("training of run %s is finished already", job.run_key[:12])
        return done
    keep_copy(job.recipe, job.paths.recipe)
    job.paths.checkpoints.mkdir(parents=True, exist_ok=True)
    began = time.time()
    if job.settings.scaling.num_workers:
        _fit_until_done(job)
    else:
        with torch_settings_kept():
            run_worker(job, Ranks.of_this_process(job.use_gpu))
    trained = finished(job.paths, job.run_key)
    if trained is None:
        raise TrainingError(
            f"training ended without a finished model in {job.paths.model}; this is a bug, please report it"
        )
    return _with_wall_time(trained, job.paths, began, time.time())


def make_job(
    run_key: str, paths: RunPaths, recipe: RecipeRef, settings: Settings, version: DatasetVersion
) -> TrainingJob:
    """Take the decisions that are left to this machine, each said once in the log."""
    _say_memory(settings, version)
    return TrainingJob(
        run_key=run_key,
        root=str(paths.root),
        recipe=recipe,
        settings=settings,
        dataset=version,
        feed=settings.data.feed,
        use_gpu=_choose_gpu(settings),
    )


def finished(paths: RunPaths, run_key: str) -> TrainedModel | None:
    """The finished training of this run, or None."""
    file = paths.model / "trained.json"
    if not file.is_file():
        return None
    trained = TrainedModel.model_validate(
        {**json.loads(file.read_text()), "weights": str(paths.model / "weights.safetensors")}
    )
    return trained if trained.run_key == run_key else None


def _say_memory(settings: Settings, version: DatasetVersion) -> None:
    """Warn when memory-mapped training images will not stay in memory, as every batch then waits for the disk."""
    import psutil

    channels, height, width = version.shape
    needed = version.rows("train") * channels * height * width
    memory: int = psutil.virtual_memory().total
    if settings.data.feed == "memory" and needed > _MEMORY_SHARE * memory:
        log.warning(
            "%.1f GB of training images on a machine with %.1f GB of memory: batches may wait for the disk. "
            "data.feed=stream reads them in order instead.",
            needed / 1e9,
            memory / 1e9,
        )


def _choose_gpu(settings: Settings) -> bool:
    if settings.scaling.use_gpu == "no":
        return False
    if settings.scaling.num_workers:
        import ray

        gpus = ray.cluster_resources().get("GPU", 0.0)
    else:
        import torch

        gpus = float(torch.cuda.device_count())
    wanted = max(1, settings.scaling.num_workers) * settings.scaling.gpus_per_worker
    if settings.scaling.use_gpu == "yes" and gpus < wanted:
        raise SettingError(
            f"scaling.use_gpu: {wanted:g} GPUs are needed, there are {gpus:g}; use auto or no, or add GPUs"
        )
    chosen = bool(gpus >= wanted)
    log.info("training on %s (%g GPUs here, %g wanted)", "GPUs" if chosen else "CPUs", gpus, wanted)
    return chosen


def _fit_until_done(job: TrainingJob) -> None:
    """Train on Ray, going on from the newest checkpoint when workers are lost, within the run's budget.

    The retries are here, not in Ray, so that one rule decides: what can't get better is not tried again.
    """
    for failures in range(job.settings.failure.max_failures + 1):
        try:
            return _fit(job)
        except Exception as error:
            known = classify(error)
            if known is None:
                raise TrainingError(f"a worker failed: {_last_words(error)}") from error
            if not known.transient or failures == job.settings.failure.max_failures:
                raise known from error
            log.warning(
                "%s Failure %d of %d allowed; going on.",
                known,
                failures + 1,
                job.settings.failure.max_failures,
            )
    return None


def _last_words(error: BaseException) -> str:
    """The innermost error of a failed worker with its place, for a message; the traceback is chained."""
    inner = [one for one in causes(error) if not type(one).__module__.startswith("ray.")]
    return f"{type(inner[-1]).__name__}: {inner[-1]}" if inner else str(error)


def _fit(job: TrainingJob) -> None:
    """Run all workers through Ray Train once. Raises what a worker raised, or Ray's own error."""
    from ray.train import FailureConfig, RunConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    settings = job.settings
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(settings.failure.worker_start_timeout_s)
    attempt = len(read_attempts(job.paths)) + 1
    share = cpus_per_worker(settings, job.feed)
    _say_batches(job)
    datasets, data_config = _streams(job)
    TorchTrainer(
        run_ray_worker,
        train_loop_config={"job": job.model_dump_json()},
        scaling_config=_scaling(job, share),
        torch_config=TorchConfig(backend=_backend(job), timeout_s=int(settings.failure.collective_timeout_s)),
        run_config=RunConfig(  # type: ignore[call-arg]  # Ray's stubs describe Train V1
            # A name of its own each time: Ray would take up its own record of an older attempt, ours is the log.
            name=f"attempt-{attempt}-{os.getpid()}",
            storage_path=str(job.paths.ray),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),  # type: ignore[call-arg]
            worker_runtime_env={"env_vars": _worker_environment(job)},
        ),
        datasets=datasets,
        dataset_config=data_config,
    ).fit()


def _scaling(job: TrainingJob, cpus: float) -> "ScalingConfig":
    from ray.train import ScalingConfig

    options = job.settings.scaling
    resources = {"CPU": cpus} | ({"GPU": options.gpus_per_worker} if job.use_gpu else {})
    return ScalingConfig(
        num_workers=options.num_workers,
        use_gpu=job.use_gpu,
        resources_per_worker=resources,
        placement_strategy=options.placement_strategy,
        accelerator_type=options.accelerator_type,
    )


def _backend(job: TrainingJob) -> str:
    chosen = job.settings.scaling.backend
    return chosen if chosen != "auto" else "nccl" if job.use_gpu else "gloo"


def _worker_environment(job: TrainingJob) -> dict[str, str]:
    threads = str(job.settings.scaling.threads_per_worker)
    names = {"OMP_NUM_THREADS": threads, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "RAY_CHDIR_TO_TRIAL_DIR": "0"}
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


def _say_batches(job: TrainingJob) -> None:
    options, workers = job.settings.training, job.settings.scaling.num_workers
    log.info(
        "world size %d, %d rows per worker and step, global batch %d%s, feed %s",
        workers,
        job.settings.local_batch_size,
        options.global_batch_size,
        f" in {options.accumulation_steps} passes" if options.accumulation_steps > 1 else "",
        job.feed,
    )


def read_attempts(paths: RunPaths) -> list[Attempt]:
    """Starts of the loop so far, oldest first."""
    file = Path(paths.root) / ATTEMPTS
    lines = file.read_text().splitlines() if file.is_file() else []
    return [Attempt.model_validate_json(line) for line in lines if line.endswith("}")]


def _with_wall_time(trained: TrainedModel, paths: RunPaths, began: float, ended: float) -> TrainedModel:
    """Account for all seconds from launch to return: start-up, what failed attempts took, and the loop's parts."""
    attempts = read_attempts(paths)
    mine = [attempt for attempt in attempts if attempt.began >= began]
    parts = {"start-up": mine[0].ready - began}
    if len(mine) > 1:
        parts["lost to failures"] = mine[-1].ready - mine[0].ready
    parts |= trained.goodput.parts
    parts["shutdown"] = max(0.0, ended - began - sum(parts.values()))
    goodput = Goodput(total_s=ended - began, parts=parts)
    return trained.model_copy(
        update={"attempts": len(attempts), "seconds": ended - began, "goodput": goodput}
    )
