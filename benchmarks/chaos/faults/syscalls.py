"""Crashes and errors at a chosen system call: a rename, the fsync after it, the write of a metric point."""

import os
import shutil
import signal
from pathlib import Path

from benchmarks.chaos.faults import IN_PROCESS, Fault
from benchmarks.chaos.trial import Trial
from training.errors import EXIT_RESOURCE

_HOOK = Path(__file__).parents[1] / "at_rename"
_KILL = f"signal={signal.SIGKILL.name}"


def crash(trial: Trial) -> None:
    """SIGKILL at a system call: in turn, a rename to a final name, the fsync after it, a metric point's write."""
    trial.pick((_crash_at_rename, _crash_after_rename, _crash_at_point))(trial)


def fail(trial: Trial) -> None:
    """Make the call fail as on a broken or full disk; the command must report that."""
    trial.pick((_rename_fails, _sync_fails, _point_fails))(trial)


def _crash_at_rename(trial: Trial) -> None:
    target = _drawn_target(trial)
    _at_rename(trial, target, "kill")
    _say(trial, f"SIGKILL at the rename to {_short(trial, target)}")


def _crash_after_rename(trial: Trial) -> None:
    folder = trial.random.choice((trial.paths.root, trial.paths.checkpoints))
    count = trial.random.randint(1, 4) if folder == trial.paths.root else 1
    _under_strace(trial, folder, "fsync", _KILL, count)
    _say(trial, f"SIGKILL at fsync {count} of a thread in {_short(trial, folder)}")


def _crash_at_point(trial: Trial) -> None:
    count = trial.random.randint(1, trial.kind.workload.steps // 2)
    _under_strace(trial, trial.paths.metrics, "write", _KILL, count)
    _say(trial, f"SIGKILL at write {count} to metrics.jsonl")


def _rename_fails(trial: Trial) -> None:
    target = _drawn_target(trial)
    _at_rename(trial, target, "fail")
    _say(trial, f"EIO at the rename to {_short(trial, target)}", EXIT_RESOURCE)


def _sync_fails(trial: Trial) -> None:
    folder = trial.random.choice((trial.paths.root, trial.paths.checkpoints))
    _under_strace(trial, folder, "fsync", "error=EIO", 1)
    _say(trial, f"EIO at the first fsync of {_short(trial, folder)}", EXIT_RESOURCE)


def _point_fails(trial: Trial) -> None:
    count = trial.random.randint(1, trial.kind.workload.steps // 2)
    _under_strace(trial, trial.paths.metrics, "write", "error=ENOSPC", count)
    _say(trial, f"ENOSPC at write {count} to metrics.jsonl", EXIT_RESOURCE)


def _drawn_target(trial: Trial) -> Path:
    """A random file or folder that an undisturbed run creates by rename; trials of one seed don't repeat a draw."""
    root = trial.reference.paths.root
    left = sorted(path for path in root.iterdir() if path.is_file() and path.suffix in (".json", ".html"))
    saved = [root / "checkpoints" / f"step-{step:09d}" for step in trial.kind.workload.checkpoint_steps]
    targets = [*left, *saved, root / "metrics.jsonl", root / "fence", root / "model"]
    return trial.paths.root / trial.drawn_without_repeat(targets, 3).relative_to(root)


def _at_rename(trial: Trial, target: Path, effect: str) -> None:
    """Start the command with a fault at its first rename to `target`."""
    trial.start(
        PYTHONPATH=f"{_HOOK}{os.pathsep}{trial.environment['PYTHONPATH']}",
        EVERGREEN_CHAOS_RENAME_TO=str(target),
        EVERGREEN_CHAOS_RENAME_EFFECT=effect,
        EVERGREEN_CHAOS_RENAME_LOG=str(trial.run_log(".injected")),
    )


def _under_strace(trial: Trial, path: Path, calls: str, effect: str, count: int) -> None:
    """Start the command with a fault at a thread's `count`-th call of this kind on `path`."""
    log = trial.run_log(".strace")
    # Without the faster --seccomp-bpf, which loses a signal that is injected into a filtered call.
    options = ["-f", "-q", "-o", str(log), "-P", str(path)]
    trial.start(["strace", *options, "-e", f"trace={calls}", "-e", f"inject={calls}:{effect}:when={count}"])


def _say(trial: Trial, what: str, *statuses: int) -> None:
    """Wait for the command's end; the fault was injected if a log of the injection says so."""
    trial.expect(*statuses, *(() if statuses else (-signal.SIGKILL,)))
    logs = [trial.run_log(suffix, len(trial.runs)) for suffix in (".strace", ".injected")]
    said = "".join(log.read_text(errors="replace") for log in logs if log.is_file())
    trial.hit(what, "INJECTED" in said or "killed by SIGKILL" in said)


def _short(trial: Trial, path: Path) -> str:
    return "the run's folder" if path == trial.paths.root else str(path.relative_to(trial.paths.root))


def _no_strace() -> str | None:
    return None if shutil.which("strace") else "strace is not installed"


FAULTS = (
    Fault("F10", "crash at a rename, fsync or write", crash, (IN_PROCESS,), unavailable=_no_strace),
    Fault("F11", "rename and fsync EIO, write ENOSPC", fail, (IN_PROCESS,), unavailable=_no_strace),
)
