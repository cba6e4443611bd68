"""I8: after a run has ended, nothing of it is left on the machine."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tasks.doctor.leftovers import leftovers
from tasks.verify.evidence import Evidence
from tasks.verify.finding import NoEvidence, Outcome, few, judged
from training.storage.run_lock import lock_file

SHARED_MEMORY = Path("/dev/shm")
# Names that torch, Python's multiprocessing and Ray give to their segments.
_SEGMENT = re.compile(r"torch_|psm_|sem\.|plasma|ray")


def processes(run: Evidence) -> Outcome:
    """No helper process of a run of this home has outlived its run. Sockets close with their process."""
    descriptions = [
        f"{process.kind} {process.pid} ({process.age_s:.0f} s): {process.command[:80]}"
        for process in leftovers(run.home)
    ]
    return judged(descriptions, "none left of this home, and so no socket")


def locks(run: Evidence) -> Outcome:
    """No process holds a lock of the run. The end of a process releases its lock, so a holder is still working."""
    recipe, model = run.plan.recipe.name, run.plan.model
    data = run.home.dataset(recipe, run.plan.fingerprint)
    ours = {
        lock_file(run.home, recipe),
        run.home.locks / f"registry-{model}.lock",
        *data.glob(".*.lock"),
    }
    held = [file for file in sorted({*ours, *run.home.locks.glob("*.lock")}) if is_held(file)]
    names = few([file.name for file in held])
    if held and not ours & {*held}:
        raise NoEvidence(f"other runs of this home are active: {names}")
    if held and run.is_finished and is_at_work(run, recipe):
        raise NoEvidence(f"a process works on recipe {recipe}: {names} held")
    return judged([f"{file.name} is held" for file in held], "none is held")


def is_at_work(run: Evidence, recipe: str) -> bool:
    """Whether a process works on `recipe`: such a process holds the recipe's lock until it ends."""
    return is_held(lock_file(run.home, recipe))


def stop_file(run: Evidence) -> Outcome:
    """No stop request is left; it would end the next attempt at its first step."""
    return judged([f"{run.paths.stop} exists"] if run.paths.stop.exists() else [], "none")


def shared_memory(run: Evidence) -> Outcome:
    """No segment of shared memory is left.

    A segment counts as left when this user owns it, it was last written between the run's start and end, its name is
    one that torch, Python or Ray gives, and no process has it open.
    """
    if not SHARED_MEMORY.is_dir():
        raise NoEvidence(f"there is no {SHARED_MEMORY} here")
    began = run.paths.ingredients.stat().st_mtime
    ended = run.paths.release.stat().st_mtime if run.is_finished else float("inf")
    segments = []
    for file in SHARED_MEMORY.iterdir():
        with suppress(OSError):  # the segment was removed in the meantime
            about = file.stat()
            if _SEGMENT.match(file.name) and about.st_uid == os.getuid() and began <= about.st_mtime <= ended:
                segments.append(file)
    left = [f"{file} ({file.stat().st_size:,} bytes)" for file in segments if not _is_open(file)]
    return judged(
        left, f"none in {SHARED_MEMORY} that this user wrote during the run and no process has open"
    )


def is_held(file: Path) -> bool:
    """Whether a process holds the lock; tested with a shared lock, which does not conflict with another test."""
    try:
        with file.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _is_open(file: Path) -> bool:
    return any(str(file) in text for text in _open_files())


def _open_files() -> Iterator[str]:
    """Texts with the paths that each process has mapped or open, as far as this user may read them."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield (process / "maps").read_text()
        with suppress(OSError):
            for handle in (process / "fd").iterdir():
                with suppress(OSError):
                    yield str(handle.readlink())
