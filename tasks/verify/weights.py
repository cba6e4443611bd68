"""I1: the weights have the bits that training recorded, that the registry names, and that an equal run gets."""

from pathlib import Path

from tasks.registry.aliases import WEIGHTS_TAG
from tasks.verify.contract import check_same_contract, unless_permitted
from tasks.verify.evidence import Evidence
from tasks.verify.finding import NoEvidence, Outcome, judged
from training.checkpoints.checkpoint_files import STATE, read_manifest, read_state
from training.checkpoints.parts import verify_parts, whole
from training.checkpoints.weights import load_weights, weights_digest
from training.errors import DataError
from training.records import EpochMetrics
from training.storage.files import digest_file
from training.trainers.base import inspection_of


def recorded(run: Evidence) -> Outcome:
    """The digest of the weights file, computed from its content, is the recorded digest."""
    wanted, digest = run.trained.weights_digest, digest_of(run)
    return _compared(digest, wanted, "trained.json")


def of_checkpoint(run: Evidence) -> Outcome:
    """The weights are those of the selected epoch's checkpoint, if that checkpoint is still kept."""
    chosen = run.trained.selected()
    folder = _checkpoint(run, chosen)
    if folder is None:
        raise NoEvidence(f"the checkpoint of epoch {chosen.epoch} is not kept any more")
    try:
        manifest = read_manifest(folder)
        if digest_file(folder / STATE) != manifest.sha256:
            raise NoEvidence(f"{folder.name} is damaged, see I7")  # a damaged file must not be parsed
        verify_parts(folder, manifest.parts)
        state = whole(read_state(folder, manifest))
        digest = inspection_of(run.plan.settings.trainer).model_digest(state, chosen.epoch)
    except (OSError, DataError, ValueError, KeyError, TypeError) as error:
        raise NoEvidence(f"{folder.name} can't be read ({type(error).__name__}), see I7") from error
    return _compared(digest_of(run), digest, f"{folder.name}, epoch {chosen.epoch}")


def _checkpoint(run: Evidence, chosen: EpochMetrics) -> Path | None:
    """The checkpoint that holds the weights of the epoch `chosen`, or None if it is not kept any more.

    A model of boosted trees has the trees of all rounds before, so any later checkpoint holds the first rounds, too.
    """
    folders = {folder.name: folder for folder in run.paths.checkpoints.glob("step-*")}
    kept = {int(name[5:]): folder for name, folder in folders.items() if name[5:].isdecimal()}
    if run.steps.thinned:
        return kept[max(kept)] if kept and max(kept) >= chosen.step else None
    return kept.get(chosen.step)


def tagged(run: Evidence) -> Outcome:
    """Every version with the run key is tagged with the digest of these weights."""
    digest = digest_of(run)
    if not run.versions:
        raise NoEvidence("no version has this run key, see I2")
    wrong = [
        f"version {version.version} names {version.tags.get(WEIGHTS_TAG, 'none')[:16]}, the file has {digest[:16]}"
        for version in run.versions
        if version.tags.get(WEIGHTS_TAG) != digest
    ]
    return judged(wrong, f"{digest[:16]} in {_versions(run)}")


def replayed(run: Evidence) -> Outcome:
    """The training's own replay from a checkpoint gave the same bits, so an interruption changes no weight."""
    trained = run.trained
    if trained.reproducible is None:
        raise NoEvidence(trained.reproducible_reason)
    return Outcome(trained.reproducible, trained.reproducible_reason)


def same_as(run: Evidence, other: Evidence) -> Outcome:
    """The other run's weights are bit for bit the same, if the two runs are comparable."""
    check_same_contract(run, other)
    outcome = _compared(digest_of(run), digest_of(other), other.paths.root.name)
    return unless_permitted(outcome, run, other)


def digest_of(run: Evidence) -> str:
    """Digest of the finished weights, computed from the tensors of their file; else from all of its bytes."""
    file = Path(run.trained.weights)
    if not file.is_file():
        raise NoEvidence(f"{file} is missing", ok=False)
    if file.suffix != ".safetensors":
        return digest_file(file)
    try:
        return weights_digest(load_weights(file))
    except DataError as error:
        raise NoEvidence(str(error), ok=False) from error


def _versions(run: Evidence) -> str:
    return ", ".join(f"version {version.version}" for version in run.versions)


def _compared(digest: str, wanted: str, where: str) -> Outcome:
    if digest == wanted:
        return Outcome(True, f"{digest[:16]}, as in {where}")
    return Outcome(False, f"{digest[:16]}, but {wanted[:16]} in {where}")
