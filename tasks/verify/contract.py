"""Whether two runs must have the same bits: same ingredients, computed under the same conditions."""

from contextlib import suppress

from tasks.verify.evidence import Evidence
from tasks.verify.finding import NoEvidence, Outcome, few
from training.checkpoints.checkpoint_files import MANIFEST, read_manifest
from training.errors import DataError
from training.identity import changes
from training.storage.files import canonical_json
from training.trainers.base import trainer_named


def check_same_contract(run: Evidence, other: Evidence) -> None:
    """Raises :class:`NoEvidence`, which names the differences, when the two runs need not have the same bits."""
    ours, theirs = (_ingredients(evidence) for evidence in (run, other))
    if different := changes(theirs, ours):
        raise NoEvidence(f"not comparable, different ingredients: {few(different)}")
    for conditions in (_of_checkpoints, _of_attempts):
        if len(descriptions := conditions(run) | conditions(other)) > 1:
            raise NoEvidence(
                f"not comparable, computed under different conditions: {few(sorted(descriptions))}"
            )


def unless_permitted(outcome: Outcome, *runs: Evidence) -> Outcome:
    """The outcome of a comparison of runs with the same contract.

    Raises :class:`NoEvidence` for a difference if a run was interrupted, and its trainer does not promise that an
    interrupted training ends with the same bits.
    """
    for run in runs:
        settings = run.plan.settings
        promise = trainer_named(settings.trainer).promise(settings)
        if outcome.ok is False and len(run.attempts) > 1 and not promise.same_bits_after_kill:
            raise NoEvidence(
                f"different after {len(run.attempts)} attempts, which trainer {settings.trainer} permits: "
                f"{outcome.detail}"
            )
    return outcome


def changed_on_the_way(run: Evidence) -> bool:
    """Whether the run's attempts computed under different conditions, so that their last bits may differ."""
    return len(_of_checkpoints(run)) > 1 or len(_of_attempts(run)) > 1


def _ingredients(run: Evidence) -> dict[str, object]:
    """The ingredients without the nonce of a forced run, which changes the run key but no result."""
    return {name: value for name, value in run.plan.ingredients.items() if name != "forced"}


def _of_checkpoints(run: Evidence) -> set[str]:
    contracts = set()
    for file in run.paths.checkpoints.glob(f"*/{MANIFEST}"):
        with suppress(OSError, DataError):  # I7 reports a damaged manifest
            contracts.add(canonical_json(read_manifest(file.parent).contract))
    return contracts


def _of_attempts(run: Evidence) -> set[str]:
    any_workers = trainer_named(run.plan.settings.trainer).promise(run.plan.settings).any_workers
    return {
        f"{attempt.device}, {'any number of' if any_workers else attempt.world_size} workers"
        for attempt in run.attempts
    }
