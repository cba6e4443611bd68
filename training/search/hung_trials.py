"""The watchdog of a search: ends the process of a trial that hangs, so that the search goes on with the other trials.

The process of the search reads the heartbeats of each running trial, as the driver of a training does: a process that
is stopped, or hangs in native code, can't detect that.
"""

import logging
import time
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path

from training.attempts.fence import next_attempt
from training.attempts.heartbeat import Heartbeat, read_beats
from training.attempts.history import read_failures
from training.attempts.job import TrainingJob
from training.errors import TransientError
from training.redaction import redact
from training.search.records import TrialFailure, TrialJob, failure_file, kind_of
from training.storage.paths import TRAINED, RunPaths
from training.storage.record_files import write_record
from training.supervision.watchdog import Watchdog, end_workers

log = logging.getLogger("evergreen.search")


def note_process(job: TrialJob, node: str) -> None:
    """Record this process, which runs a trial on `node`, for :class:`HungTrials`.

    The record is a heartbeat in the search's folder; the run's own heartbeats begin only with the training.
    """
    file = RunPaths(Path(job.folder)).beats / f"rank-{job.number}.json"
    Heartbeat(file, attempt=0, rank=job.number, node=node).beat(0)


@dataclass
class HungTrials:
    """Ends the trials of `jobs` that hang; the process of the search calls :meth:`look` about twice a second."""

    jobs: Iterable[TrialJob]
    _watched: dict[int, "_Watched"] = field(default_factory=dict)

    def look(self, running: Set[int]) -> None:
        """Check the running trials. A trial that hangs gets a record of its failure, and its process is killed."""
        for job in self.jobs:
            if job.number in running:
                self._watched.setdefault(job.number, _Watched(job)).look()
            else:
                self._watched.pop(job.number, None)


@dataclass
class _Watched:
    job: TrialJob
    _watchdog: Watchdog | None = None
    _since: float = 0.0  # when the watchdog began, by time.monotonic()
    _is_over: bool = False

    def look(self) -> None:
        paths = self.job.plan.paths
        if self._is_over or (paths.model / TRAINED).is_file():  # no heartbeats once the model is written
            return
        attempt = self._attempt(paths)
        if self._watchdog is None or self._watchdog.job.attempt != attempt:
            self._watchdog = Watchdog(_training_job(self.job, attempt))
            self._since = time.monotonic()
        if self._may_wait_for_store(attempt):
            # The time limit of a start begins after the wait.
            self._watchdog = Watchdog(_training_job(self.job, attempt))
            return
        try:
            self._watchdog.look()
        except TransientError as error:
            self._end(error)

    def _may_wait_for_store(self, attempt: int) -> bool:
        settings = self.job.plan.settings
        waited_s = time.monotonic() - self._since
        if settings.storage.url is None or waited_s > settings.tracking.outage_s:
            return False
        return not any(beat.attempt == attempt for beat in read_beats(self.job.plan.paths))

    def _attempt(self, paths: RunPaths) -> int:
        """Number of the present attempt; negative between a failed attempt and the next (no heartbeats)."""
        newest = next_attempt(paths) - 1
        return -newest if any(failure.number == newest for failure in read_failures(paths)) else newest

    def _end(self, error: TransientError) -> None:
        """Record why the trial failed, and kill its process: Ray Tune then ends the trial."""
        self._is_over = True
        log.warning("trial %d: %s", self.job.number, error)
        folder = Path(self.job.folder)
        failure = TrialFailure(
            error=f"the trial hung: {redact(str(error))}",
            transient=True,
            kind=kind_of(error),
            run_key=self.job.plan.run_key,
        )
        write_record(failure_file(folder, self.job.number), failure, folder.name)
        end_workers([beat for beat in read_beats(RunPaths(folder)) if beat.rank == self.job.number])


def _training_job(job: TrialJob, attempt: int) -> TrainingJob:
    plan = job.plan
    return TrainingJob(
        run_key=plan.run_key,
        root=str(plan.paths.root),
        recipe=plan.recipe,
        settings=plan.settings,
        dataset=job.version,
        feed=plan.settings.data.feed,
        use_gpu=False,
        attempt=attempt,
    )
