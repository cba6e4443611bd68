"""Initial weights of a training in an object store: the driver uploads the weights, each worker downloads them."""

from collections.abc import Callable

from training.attempts.job import TrainingJob
from training.checkpoints.opening import prefix_of_run
from training.checkpoints.weights import digest_of_file
from training.errors import DataError, TransientError
from training.storage.files import atomic_file
from training.storage.objects.base import ObjectStore, ignored


def publish_initial(job: TrainingJob, store: ObjectStore) -> None:
    """Upload the run's copy of the initial weights, unless the store has it or the training starts from new weights."""
    folder, key = _folder(job), _key(job)
    if job.initial and key not in store.keys(folder):
        store.put_file(key, job.paths.initial_weights)


def fetch_initial(job: TrainingJob, store: ObjectStore, moved: Callable[[int], None] = ignored) -> None:
    """Download the initial weights to the run's folder on this node.

    Raises :class:`TransientError` if the object is missing or damaged. A damaged object is deleted from the store, so
    that the driver's next attempt uploads the weights again.
    """
    if not job.initial:
        return
    with atomic_file(job.paths.initial_weights, durable=False) as aside:
        try:
            store.get_file(_key(job), aside, moved)
            damaged = digest_of_file(aside) != job.initial
        except (FileNotFoundError, DataError):
            damaged = True
        if damaged:
            store.delete([_key(job)])
            raise TransientError(
                f"{store.url}/{_key(job)}: missing or damaged. Run the same command again: the driver uploads the "
                "initial weights again."
            )


def _folder(job: TrainingJob) -> str:
    return f"{prefix_of_run(job.recipe.name, job.paths.root.name)}/initial"


def _key(job: TrainingJob) -> str:
    return f"{_folder(job)}/{job.initial[:16]}.safetensors"
