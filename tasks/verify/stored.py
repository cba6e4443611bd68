"""I7: the objects of a run and of its dataset in the object store (`storage.url`) have the uploaded content."""

from tasks.verify.evidence import Evidence
from tasks.verify.finding import Outcome, judged
from training.checkpoints.opening import prefix_of_dataset, prefix_of_run
from training.checkpoints.stored_run import StoredRun
from training.data.manifest import files_of
from training.errors import DataError
from training.ray_cluster import stored_datasets
from training.storage.objects.base import open_store


def objects(run: Evidence) -> Outcome:
    """The finished training and the checkpoints in the store have the digests that the run's log records."""
    url = run.plan.settings.storage.url
    if url is None:
        return Outcome(True, "the run uses no object store")
    stored_run = StoredRun(open_store(url), prefix_of_run(run.plan.recipe.name, run.paths.root.name))
    try:
        state = stored_run.newest_entry()
    except DataError as error:
        return Outcome(False, f"{error} The next attempt of the run continues from the entry before it")
    files = state.model + tuple(file for checkpoint in state.checkpoints for file in checkpoint.files)
    problems = stored_run.damage(files)
    if problems:
        remedy = (
            f"Restore the objects, or delete {url}/{stored_run.prefix}: this home keeps a finished training, and "
            "another home trains again"
        )
        return judged([*problems[:2], remedy], "")
    finished = "the finished training" if state.model else "no finished training"
    return Outcome(
        True, f"sha256 of {len(files)} objects: {finished}, checkpoints of {len(state.checkpoints)} steps"
    )


def dataset(run: Evidence) -> Outcome:
    """The files of the dataset in the store have the digests that the manifest there lists, whoever uploaded them."""
    url = run.plan.settings.storage.url
    if url is None:
        return Outcome(True, "the run uses no object store")
    store, count = open_store(url), 0
    try:
        stored_version = stored_datasets.stored_version(run.dataset, store)
        problems, count = stored_datasets.damage(stored_version, store), len(files_of(stored_version))
    except FileNotFoundError:
        return Outcome(True, f"the dataset is not in {url}: a training uploads it for workers on Ray")
    except DataError as error:
        problems = [str(error)]
    remedy = f"Delete {url}/{prefix_of_dataset(run.dataset)}: the next training uploads the dataset again"
    return judged([*problems[:2], remedy] if problems else [], f"sha256 of {count} files")
