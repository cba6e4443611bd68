"""Opens the checkpoints of a job: in the run's folder, or in the object store that `storage.url` names."""

from collections.abc import Callable

from training.attempts.fence import Fence
from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile
from training.checkpoints.checkpoint_log import CheckpointLog
from training.checkpoints.stored_checkpoints import StoredCheckpointLog
from training.checkpoints.stored_run import StoredRun
from training.checkpoints.writers import Writers
from training.errors import TrainingError, TransientError
from training.records import DatasetVersion
from training.storage.objects.base import open_store


def prefix_of_run(recipe: str, name: str) -> str:
    """The key prefix of a run's objects; `name` is the name of the run's folder."""
    return f"runs/{recipe}/{name}"


def prefix_of_dataset(version: DatasetVersion) -> str:
    """The key prefix of a dataset version's objects."""
    return f"datasets/{version.name}/{version.fingerprint[:16]}"


def stored_run(job: TrainingJob) -> StoredRun | None:
    """The job's run in the object store; None when the settings name no store."""
    if job.settings.storage.url is None:
        return None
    dataset = prefix_of_dataset(job.dataset)
    return stored_run_of(job.settings.storage.url, job.recipe.name, job.paths.root.name, dataset)


def stored_run_of(url: str, recipe: str, name: str, dataset: str = "") -> StoredRun:
    """The run in the object store at `url`; `name` is the name of the run's folder, `dataset` its dataset's prefix."""
    return StoredRun(open_store(url), prefix_of_run(recipe, name), dataset=dataset)


def open_checkpoints(
    job: TrainingJob,
    fence: Fence,
    is_first: bool,
    conditions: dict[str, str],
    before_commit: Callable[[], None],
    progress: Callable[[], None],
    moved: Callable[[int], None],
    metrics: MetricsFile,
    writers: Writers | None = None,
) -> CheckpointLog:
    """Open the checkpoints of a job in one worker. `writers` write them together; None: the first worker alone.

    Raises :class:`training.attempts.fence.SupersededError` on the first worker if a newer attempt has begun.
    """
    writers = writers or Writers()
    given = (
        job.paths.checkpoints,
        job.settings.checkpoint,
        job.run_key,
        conditions,
        before_commit,
        progress,
        moved,
    )
    if (stored := stored_run(job)) is None:
        return CheckpointLog(*given, metrics=metrics, writers=writers)
    if is_first:
        stored.fence = fence
        stored.enter()
    return StoredCheckpointLog(*given, metrics=metrics, writers=writers, stored=stored)


def different_checkpoints(job: TrainingJob) -> TrainingError | TransientError:
    """The error when workers read different newest checkpoints.

    Transient with an object store: a worker of an earlier attempt may have committed, or one download may have failed,
    while the workers read.
    """
    url = job.settings.storage.url
    if url is None:
        return TrainingError(
            f"workers found different checkpoints in {job.paths.checkpoints}. If the workers do not share "
            "this folder, put EVERGREEN_HOME on storage that all of them share, or set storage.url; else check the "
            "disk, and run the same command again."
        )
    return TransientError(
        f"workers found different checkpoints in {url}, which another process changed meanwhile. Run the same command "
        "again: it resumes."
    )
