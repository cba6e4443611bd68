"""Outcomes of the replay check of a training: reading and creating them, and their text."""

from collections.abc import Sequence

from training.records import ReplayOutcome
from training.storage.paths import RunPaths
from training.storage.record_files import find_record

MOST_TRIES = 2
_SHOWN = 5
_SAVE_IT = (
    "Keep such state in the checkpoint: register it with self.register_buffer(name, tensor), or compute it from the "
    "inputs."
)
_FIND_IT = (
    "The model holds no unsaved state that differs, so look for numbers that Evergreen does not seed (the clock, the "
    "operating system, a generator of another library) and for kernels that are not deterministic: "
    "training.deterministic=refuse names those."
)


def read_outcome(paths: RunPaths) -> ReplayOutcome | None:
    """The outcome that a run's workers wrote; None before the replay, or if the file is damaged."""
    return find_record(paths.replay, ReplayOutcome, paths.root.name)


def is_decided(outcome: ReplayOutcome | None) -> bool:
    """Whether the run's check is over: a replay has finished, or :data:`MOST_TRIES` replays were started."""
    return outcome is not None and (outcome.finished or outcome.tries >= MOST_TRIES)


def begun(before: ReplayOutcome | None) -> ReplayOutcome:
    """The outcome to write before a replay starts. It remains if the worker dies during the replay."""
    tries = 1 + (before.tries if before else 0)
    return ReplayOutcome(
        reproducible=None,
        reason=f"not checked: the worker died {'once' if tries == 1 else f'{tries} times'} during the replay",
        tries=tries,
        finished=False,
    )


def unchecked(reason: str) -> ReplayOutcome:
    """The outcome if there was no replay, or if the replay failed; `reason` says why."""
    return ReplayOutcome(reproducible=None, reason=f"not checked: {reason}")


def equal(from_step: int, steps: int) -> ReplayOutcome:
    """The outcome if the replay gave the same bits."""
    counted = "1 step" if steps == 1 else f"{steps} steps"
    return ReplayOutcome(
        reproducible=True,
        reason=f"a new model replayed {counted} from the checkpoint at step {from_step} to the same bits",
        from_step=from_step,
        steps=steps,
    )


def different(
    from_step: int,
    steps: int,
    first: int | None,
    differing: Sequence[str],
    unsaved: Sequence[str],
    remedy: str = "",
) -> ReplayOutcome:
    """The outcome if the replay gave other bits, or found state that the checkpoint does not hold.

    `first` is the first step after which the tensors named in `differing` differ, or None; `unsaved` names the state
    that is missing in the checkpoint.
    """
    said = []
    if first is not None:
        where = f"a replay from the checkpoint at step {from_step} differs after step {first} in "
        said.append(where + few(differing))
    if unsaved:
        said.append(f"the checkpoint does not hold {few(unsaved)}")
    if not said:
        said = [f"a replay from the checkpoint at step {from_step} differs on another worker than the first"]
    remedy = remedy or (_SAVE_IT if unsaved else _FIND_IT)
    return ReplayOutcome(
        reproducible=False,
        reason=f"{'; '.join(said)}. A run that is interrupted may end with other weights. {remedy}",
        from_step=from_step,
        steps=steps,
        first_difference=first,
        differing=tuple(differing),
        unsaved=tuple(unsaved),
    )


def spelled(reproducible: bool | None, reason: str) -> str:
    """The fields `reproducible` and `reason` of a record as one sentence for people."""
    return reason if reproducible is None else f"{'yes' if reproducible else 'NO'}: {reason}"


def few(names: Sequence[str]) -> str:
    """The first few names as text, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
