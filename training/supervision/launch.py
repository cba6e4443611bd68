"""Run a training and return its result: on Ray Train workers, or in this process when `scaling.num_workers` is 0."""

import logging
import math
import time
from pathlib import Path

from training.attempts.fence import Fence, new_driver, newest_driver, next_attempt
from training.attempts.history import Attempt, read_attempts
from training.attempts.job import TrainingJob
from training.checkpoints.opening import stored_run
from training.checkpoints.stored_checkpoints import download_model, upload_model
from training.errors import DataError, EvergreenError, SettingError, TrainingError, TransientError
from training.initial_weights import InitialWeights
from training.ray_cluster.capacity import workers_with_gpus
from training.ray_cluster.ray_train import fit
from training.recipe_copy import keep_copy
from training.recipe_sources import RecipeRef
from training.records import DatasetVersion, Goodput, TrainedModel
from training.settings.schema import ScalingSettings, Settings
from training.storage.paths import TRAINED, RunPaths
from training.storage.record_files import find_record, set_aside
from training.supervision.supervise import train_until_done
from training.trainers.base import check_dataset, trainer_named
from training.trainers.ranks import Ranks, process_settings_kept

log = logging.getLogger("evergreen.launch")

_MEMORY_SHARE = 0.7  # share of the machine's memory; more memory-mapped training rows cause a warning
_BYTES_OF_FLOAT = 4  # a table's rows are float32; a value of an image is one byte
_BYTES_OF_TOKEN = 8


def launch(job: TrainingJob, failed_before: int = 0) -> TrainedModel:
    """Start or resume training until the model of `job.run_key` is finished; a finished model is returned at once.

    `failed_before` earlier failures count against `failure.max_failures`.
    Raises the :class:`training.errors.EvergreenError` that ends the training.
    """
    if (done := finished(job.paths, job.run_key)) is not None:
        log.info("training of run %s is finished already", job.run_key[:12])
        _upload_finished(job)
        return done
    keep_copy(job.recipe, job.paths.recipe)
    job.paths.checkpoints.mkdir(parents=True, exist_ok=True)
    if job.paths.model.exists():  # of another run, or incomplete: the finished model is renamed to this path
        set_aside(job.paths.model, "it holds no finished model of this run")
    _download_finished(job)
    if (done := finished(job.paths, job.run_key)) is not None:
        log.info("training of run %s is finished already, in %s", job.run_key[:12], job.settings.storage.url)
        return done
    before = len(read_attempts(job.paths))
    began, start = time.time(), time.perf_counter()
    if job.settings.scaling.num_workers:
        train_until_done(job, fit, on_ray=True, failed_before=failed_before)
    else:
        train_until_done(job, _train_here, on_ray=False, failed_before=failed_before)
    _download_trained(job)
    trained = finished(job.paths, job.run_key)
    if trained is None:
        raise TrainingError(
            f"training ended without a finished model in {job.paths.model}; this is a bug, please report it"
        )
    ended = (
        began + time.perf_counter() - start
    )  # not time.time(): the machine's clock may have been set meanwhile
    return _with_wall_time(trained, read_attempts(job.paths), before, began, ended)


def _download_finished(job: TrainingJob) -> None:
    """Download the finished training, if the run's object store has one: another machine may have trained."""
    if (stored := stored_run(job)) is None:
        return
    try:
        download_model(stored, job.paths)
    except DataError as error:
        log.warning("%s The training is finished again from its newest checkpoint.", error)


def _upload_finished(job: TrainingJob) -> None:
    """Upload the finished training of this machine, if the run's object store lacks it.

    The process that trained here may have been killed before the upload, or the run had no `storage.url`. A run that
    another driver has begun in the store is left to that driver.
    """
    try:
        if (stored := stored_run(job)) is None:
            return
        state = stored.state()
        if state.model or state.driver not in ("", newest_driver(job.paths)):
            return
        # The same name again: a kill between the two next lines must not make this run that of another driver.
        driver = newest_driver(job.paths) or new_driver()
        number = stored.begin(driver, next_attempt(job.paths), directly_after=state)
        Fence.begin(job.paths, driver, number)
        stored.fence = Fence.enter(job.paths, number, driver)
        stored.enter()
        upload_model(stored, job.paths)
    except EvergreenError as error:
        log.warning(
            "%s The finished training is not in %s; it is on this machine.", error, job.settings.storage.url
        )
    else:
        log.info("uploaded the finished training to %s", job.settings.storage.url)


def _download_trained(job: TrainingJob) -> None:
    """Download what the workers have just finished. Raises :class:`TransientError` if the store lacks a file of it."""
    if (stored := stored_run(job)) is None:
        return
    try:
        download_model(stored, job.paths)
    except DataError as error:
        raise TransientError(
            f"{error} The training is finished, but its model can't be downloaded: run the same command again."
        ) from error


def _train_here(job: TrainingJob) -> None:
    with process_settings_kept():
        trainer_named(job.settings.trainer).run_worker(job, Ranks.of_this_process(job.use_gpu))


def make_job(
    run_key: str,
    paths: RunPaths,
    recipe: RecipeRef,
    settings: Settings,
    version: DatasetVersion,
    initial: InitialWeights | None = None,
) -> TrainingJob:
    """Create the training job: choose GPUs or CPUs by what is available, and log the choice.

    `initial` describes the weights in `paths.initial_weights`, from which the training starts; None: new ones.

    Raises :class:`SettingError` when settings need GPUs that are missing, and :class:`TransientError` when a resumed
    run began on GPUs that are missing now.
    """
    check_dataset(settings, version)
    _warn_about_memory(settings, version)
    use_gpu = _device_of_run(paths, settings, _choose_gpu(settings))
    if not use_gpu and settings.uses_float16:
        raise SettingError(
            "training.precision: float16 needs a GPU, and this training runs on CPUs; use bfloat16 or float32"
        )
    if not use_gpu and settings.scaling.backend == "nccl":
        raise SettingError(
            "scaling.backend: nccl needs GPUs, and this training runs on CPUs; use gloo or auto"
        )
    return TrainingJob(
        run_key=run_key,
        root=str(paths.root),
        recipe=recipe,
        settings=settings,
        dataset=version,
        feed=settings.data.feed,
        use_gpu=use_gpu,
        initial=initial.digest if initial is not None else "",
    )


def finished(paths: RunPaths, run_key: str) -> TrainedModel | None:
    """The finished training of this run; None when there is none, or its record is damaged (logged as a warning)."""
    trained = find_record(paths.model / TRAINED, TrainedModel, paths.root.name)
    if trained is None or trained.run_key != run_key:
        return None
    return trained.model_copy(update={"weights": str(paths.model / Path(trained.weights).name)})


def _warn_about_memory(settings: Settings, version: DatasetVersion) -> None:
    """Warn when the memory-mapped training rows do not fit into memory: each batch may then wait for the disk."""
    import psutil

    size = 1 if version.has_images else _BYTES_OF_FLOAT if version.text is None else _BYTES_OF_TOKEN
    needed = version.rows("train") * math.prod(version.shape) * size
    memory: int = psutil.virtual_memory().total
    if settings.data.feed == "memory" and needed > _MEMORY_SHARE * memory:
        log.warning(
            "%.1f GB of training %s on a machine with %.1f GB of memory: batches may wait for the disk.%s",
            needed / 1e9,
            "images" if version.has_images else "rows",
            memory / 1e9,
            " data.feed=stream reads them in order instead." if version.has_images else "",
        )


def _choose_gpu(settings: Settings) -> bool:
    if settings.scaling.use_gpu == "no" or not settings.training.can_use_gpus:
        return False
    options = settings.scaling
    with_gpus = workers_with_gpus(options) if options.num_workers else _workers_with_gpus_here(options)
    wanted_workers = max(1, options.num_workers)
    fewest_workers = options.min_workers or wanted_workers
    if options.use_gpu == "yes" and with_gpus < fewest_workers:
        raise SettingError(
            f"scaling.use_gpu: {fewest_workers * options.gpus_per_worker:g} GPUs are needed for {fewest_workers} "
            f"workers, there are enough for {with_gpus}; use auto or no, or add GPUs"
        )
    chosen = with_gpus >= fewest_workers
    wanted_text = (
        f"{fewest_workers} to {wanted_workers}" if fewest_workers < wanted_workers else f"{wanted_workers}"
    )
    if chosen:
        log.info("training on GPUs: there are GPUs for %d workers, %s are wanted", with_gpus, wanted_text)
    elif with_gpus:
        log.warning(
            "training on CPUs: there are GPUs for %d workers, %s are wanted. To train on GPUs, set "
            "scaling.num_workers=%d.",
            with_gpus,
            wanted_text,
            with_gpus,
        )
    else:
        log.info("training on CPUs: there is no GPU for a worker")
    return chosen


def _workers_with_gpus_here(options: ScalingSettings) -> int:
    import torch

    return int(torch.cuda.device_count() >= options.gpus_per_worker)


def _device_of_run(paths: RunPaths, settings: Settings, use_gpu: bool) -> bool:
    """Whether to use GPUs. With `scaling.use_gpu=auto`, a resumed run keeps its device type.

    Another device type would change the last bits of the weights.
    Raises :class:`TransientError` when the run began on GPUs and there are not enough GPUs now.
    """
    attempts = read_attempts(paths)
    if not attempts or settings.scaling.use_gpu != "auto":
        return use_gpu
    began_on_gpu = attempts[-1].device == "cuda"
    if began_on_gpu and not use_gpu:
        raise TransientError(
            "scaling.use_gpu: this run was begun on GPUs, and there are not enough now. Run the same command when "
            "they are back, or set scaling.use_gpu=no to continue on CPUs."
        )
    return began_on_gpu


def _with_wall_time(
    trained: TrainedModel, attempts: list[Attempt], before: int, began: float, ended: float
) -> TrainedModel:
    """Extend the training loop's goodput to the whole launch: start-up, time lost to failures, and shutdown.

    `attempts[before:]` belong to this launch; their times may come from the clocks of other machines, which may
    differ. So no part is negative, or longer than what is left of the launch.
    """
    mine, total = attempts[before:], ended - began
    parts = {"start-up": 0.0}
    if len(mine) > 1:
        left = max(0.0, total - sum(trained.goodput.parts.values()))
        parts["lost to failures"] = min(left, max(0.0, mine[-1].ready - mine[0].ready))
    parts |= trained.goodput.parts
    rest = max(0.0, total - sum(parts.values()))
    parts["start-up"] = min(rest, max(0.0, mine[0].ready - began)) if mine else rest
    parts["shutdown"] = rest - parts["start-up"]
    goodput = Goodput(total_s=sum(parts.values()), parts=parts)
    return trained.model_copy(update={"attempts": len(attempts), "seconds": total, "goodput": goodput})
