"""Judge a trial: the invariants that `tasks.verify` checks, and those that only an observer of the processes can."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import psutil

from benchmarks.chaos import processes
from benchmarks.chaos.record import Broken, Outcome
from benchmarks.chaos.retraining import DOCUMENTED, HUNG
from benchmarks.chaos.trial import Trial
from tasks.verify import Finding, verify
from training.attempts.history import read_attempts

RECOVERY_BOUND_S = 240.0
_GRACE_S = 30.0
_TRACEBACK = "Traceback (most recent call last)"
_RAY_WORK = ("ray::RayTrainWorker", "ray::TrainController")


def judge(trial: Trial) -> Outcome:
    """Check a trial that has ended."""
    seconds = time.time() - trial.runs[0].began
    broken = [*_seen(trial), *(Broken(invariant=i, name=n, detail=d) for i, n, d in trial.notes)]
    against = trial.reference.paths
    findings = verify(trial.paths, trial.home, against, RECOVERY_BOUND_S) if trial.paths.root.is_dir() else ()
    broken += [_as_broken(finding) for finding in findings if finding.ok is False]
    attempts = read_attempts(trial.paths)
    return Outcome(
        fault=trial.fault,
        trainer=trial.kind.trainer,
        trial=trial.number,
        seed=trial.seed,
        moment="; ".join([*trial.moments, *(f"missed: {moment}" for moment in trial.missed)]),
        injected=bool(trial.moments),
        statuses=tuple(trial.statuses),
        weights_identical=_all(findings, "weights of the other run"),
        one_version=_all(findings, "one version"),
        metric_gaps=_says(findings, "is missing at step"),
        metric_doubles=_says(findings, " times at step"),
        steps_repeated=max(trial.watch.repeated, default=0) if trial.watch else 0,
        attempts=len(attempts),
        recovery_s=None if trial.recovery_s is None else round(trial.recovery_s, 2),
        seconds=round(seconds, 2),
        broken=tuple(broken),
        untold=tuple(_as_broken(finding) for finding in findings if finding.ok is None),
        code=trial.bench.code,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _seen(trial: Trial) -> Iterator[Broken]:
    """Violations shown by exit statuses, output, the working directory and the process table."""
    strange = [status for status in trial.statuses if status not in DOCUMENTED and status != HUNG]
    if strange:
        yield Broken(invariant="I10", name="exit status", detail=f"{strange} of {trial.statuses}")
    if trial.statuses[-1] != 0:
        detail = f"statuses {trial.statuses}; last words: {_last_words(trial)}"
        yield Broken(invariant="I10", name="ends well", detail=detail)
    if _TRACEBACK in (said := trial.said()):
        detail = said[said.index(_TRACEBACK) :][:3000]
        yield Broken(invariant="I10", name="no traceback", detail=detail)
    if strays := sorted(
        str(file.relative_to(trial.folder)) for file in trial.folder.rglob("*") if file.is_file()
    ):
        yield Broken(invariant="I8", name="files outside the home", detail=", ".join(strays[:5]))
    yield from _left(trial)


def _left(trial: Trial) -> Iterator[Broken]:
    """Violations by processes that outlive the command."""
    if not processes.wait_until(lambda: not trial.processes(), _GRACE_S, 0.5):
        listed = [" ".join(process.cmdline())[:120] for process in trial.processes()]
        yield Broken(invariant="I8", name="processes of the home", detail="; ".join(listed))
    if trial.own_services or not trial.kind.workers:
        return
    if not processes.wait_until(lambda: not _at_work(trial), _GRACE_S, 0.5):
        listed = [" ".join(process.cmdline())[:60] for process in _at_work(trial)]
        yield Broken(invariant="I8", name="workers on the cluster", detail="; ".join(listed))


def _at_work(trial: Trial) -> list[psutil.Process]:
    ray_processes = trial.bench.ray.processes()
    return [process for title in _RAY_WORK for process in processes.named(ray_processes, title)]


def _last_words(trial: Trial) -> str:
    return trial.run.log.read_text(errors="replace").strip()[-600:]


def _as_broken(finding: Finding) -> Broken:
    return Broken(invariant=finding.invariant, name=finding.name, detail=finding.detail[:1500])


def _all(findings: tuple[Finding, ...], name: str) -> bool | None:
    """Result of the check called `name`; None if the check could not be made."""
    return next((finding.ok for finding in findings if finding.name == name), None)


def _says(findings: tuple[Finding, ...], words: str) -> bool | None:
    """Whether a failed check of the metric points mentions `words`; None if there was no such check."""
    checks = [finding for finding in findings if finding.invariant == "I3" and finding.ok is not None]
    return any(check.ok is False and words in check.detail for check in checks) if checks else None
