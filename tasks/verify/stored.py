"""I7: the objects of a run in its object store (`storage.url`) have the content that was uploaded."""

from tasks.verify.evidence import Evidence
from tasks.verify.finding import Outcome, judged
from training.checkpoints.opening import prefix_of_run
from training.checkpoints.stored_run import StoredRun
from training.errors import DataError
from training.storage.objects.base import open_store


def objects(run: Evidence) -> Outcome:
    """The finished training and the checkpoints in the store have the digests that the run's log records."""
    url = run.plan.settings.storage.url
    if url is None:
        return Outcome(True, "the run uses no object store")
    stored = StoredRun(open_store(url), prefix_of_run(run.plan.recipe.name, run.paths.root.name))
    try:
        state = stored.newest_entry()
    except DataError as error:
        return Outcome(False, f"{error} The next attempt of the run continues from the entry before it")
    files = state.model + tuple(file for checkpoint in state.checkpoints for file in checkpoint.files)
    problems = stored.damage(files)
    if problems:
        remedy = (
            f"Restore the objects, or delete {url}/{stored.prefix}: this home keeps a finished training, and another "
            "home trains again"
        )
        return judged([*problems[:2], remedy], "")
    finished = "the finished training" if state.model else "no finished training"
    return Outcome(
        True, f"sha256 of {len(files)} objects: {finished}, checkpoints of {len(state.checkpoints)} steps"
    )
