"""In: a planned search and its dataset version. Out: the search with the result of each trial, recorded in MLflow.

Trials train in processes of Ray Tune. This process records each result when the trial ends, so that an interrupted
search continues with the trials that have no result. Trials read training and validation rows, never the test split.
When no trial trained a model, fails with an error of the kind with which a trial failed; see
:func:`training.search.results.without_winner`.
"""

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tasks.registry.initial_weights import check_tokenizer, keep_initial_weights
from tasks.report_page.parallel_coordinates import parallel_coordinates
from tasks.step import step
from tasks.terminal.search_progress import SearchProgress, shown_search
from tasks.trackers.mlflow_run import connect_once, connect_patiently
from tasks.trackers.search_run import close_search, open_search, publish_trial, search_failure_recorded
from tasks.train import keep_plan
from training.errors import EvergreenError, TransientError, classify
from training.records import DatasetVersion
from training.search.generations import grown, next_generation
from training.search.planning import PlannedSearch
from training.search.ray_tune import run_trials, rungs_of
from training.search.records import Event, Search, Trial, TrialJob, TrialResult
from training.search.results import known_results, result_of_ended, without_winner
from training.storage.record_files import write_record

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.search")


@step("search")
def search(planned: PlannedSearch, version: DatasetVersion, concurrent: int | None) -> Search:
    """Run the trials without a result, at most `concurrent` at a time; returns the search with all results.

    Prefect does not retry this task. The failure of a trial does not end the search; but with the scheduler pbt, a
    failure that may not happen again raises :class:`TransientError`, because the next generation depends on the trial.
    """
    planned = grown(planned)
    running = _Running(planned, version, known_results(planned, rewrites=True))
    with search_failure_recorded(planned.plans[0], planned.search), shown_search(planned) as progress:
        running.begin(progress)
        while True:
            if jobs := running.jobs():
                run_trials(jobs, planned.folder, planned.search.scheduler, concurrent, running)
            if not running.grow():
                return running.end()


@dataclass
class _Running:
    """A search in progress: receives the events of Ray Tune, and updates the records on disk and in MLflow."""

    planned: PlannedSearch
    version: DatasetVersion
    search: Search
    _progress: SearchProgress | None = None
    _began: dict[int, float] = field(default_factory=dict)
    _published: set[int] = field(default_factory=set)
    _away: bool = False  # MLflow did not answer: the results are sent at the end

    def begin(self, progress: SearchProgress) -> None:
        """Open the search's MLflow run, if MLflow answers; show and record the results of earlier commands."""
        self._progress = progress
        try:
            self._open(connect_once(self.planned.plans[0]))
        except Exception as error:
            known = _transient(error)
            log.warning("%s The search begins; its results are sent when MLflow is back.", known)
        for result in self.search.results:
            progress.ended(result)
        self._save()

    def jobs(self) -> list[TrialJob]:
        """Jobs of the trials that must run; creates the run folder of each trial."""
        rungs = rungs_of(max(plan.settings.epochs for plan in self.planned.plans))
        return [self._job(trial, rungs) for trial in self.search.left]

    def _job(self, trial: Trial, rungs: tuple[int, ...]) -> TrialJob:
        self.planned.failure_of(trial).unlink(missing_ok=True)
        plan = keep_plan(self.planned.plan_of(trial))
        keep_initial_weights(plan)
        check_tokenizer(plan, self.version)
        return TrialJob(
            number=trial.number,
            plan=plan,
            version=self.version,
            metric=self.search.metric,
            folder=str(self.planned.folder),
            rungs=rungs,
        )

    def grow(self) -> bool:
        """Plan the next generation of the scheduler pbt; returns False if there is none.

        Raises :class:`TransientError` if a trial of this generation failed, but may succeed when it is tried again.
        """
        generation = self.planned.search.trials[-1].generation
        if generation < self.planned.search.generations:
            for result in self.search.results:
                if result.transient:
                    raise TransientError(
                        f"trial {result.number} of generation {generation} failed: {result.error} The next generation "
                        "depends on this trial. Run the same command again: it continues."
                    )
        more = next_generation(self.planned, self.search)
        if more is None:
            return False
        assert self._progress is not None
        self.planned = self._progress.planned = more
        self.search = known_results(more)
        log.info("generation %d of %d begins", generation + 1, more.search.generations)
        trained_before = {trial.number for trial in more.search.trials if trial.generation > generation}
        for result in self.search.results:
            if result.number in trained_before:
                self._progress.ended(result)
        self._save()
        return True

    def __call__(self, event: Event) -> None:
        """Handle an event of Ray Tune."""
        assert self._progress is not None
        if event.what == "started":
            self._began[event.number] = time.monotonic()
            self._progress.started(event.number)
        elif event.what == "epoch":
            self._progress.epoch(event.number, event.epoch)
        elif not event.interrupted:
            self._ended(self.planned.trial(event.number), event.crashed)

    def end(self) -> Search:
        """Send the results that MLflow lacks, and draw the picture. Raises the error of a search without a winner."""
        plan = self.planned.plans[0]
        client = connect_patiently(plan)
        self._open(client)
        for result in self.search.results:
            if result.number not in self._published:
                self._publish(result, plan.settings.tracking.outage_s)
        winner = self.search.winner
        picture = parallel_coordinates(self.search, self.planned.picture) if winner else None
        close_search(client, self.search, picture)
        self.search = self.search.model_copy(update={"published": True})
        self._save()
        if winner is None:
            raise without_winner(self.search)
        return self.search

    def _ended(self, trial: Trial, crashed: bool) -> None:
        assert self._progress is not None
        seconds = time.monotonic() - self._began.get(trial.number, time.monotonic())
        result = result_of_ended(self.planned, trial, seconds, crashed)
        self.search = self.search.with_result(result)
        self._save()
        self._progress.ended(result)
        if self._away:  # MLflow's client waits up to minutes for an answer, and the trials would wait with it
            return
        try:
            self._publish(result)
        except Exception as error:
            known = _transient(error)
            self._away = True
            log.warning(
                "MLflow does not accept trial %d now; it is sent at the end of the search (%s)",
                trial.number,
                known,
            )

    def _open(self, client: "MlflowClient") -> None:
        run_id = open_search(client, self.search, self.planned.plans[0])
        self.search = self.search.model_copy(update={"mlflow_run_id": run_id})

    def _publish(self, result: TrialResult, outage_s: float = 0.0) -> None:
        if not self.search.mlflow_run_id:
            return
        plan = self.planned.plan_of(self.planned.trial(result.number))
        publish_trial(connect_once(plan), self.search.mlflow_run_id, plan, self.version, result, outage_s)
        self._published.add(result.number)

    def _save(self) -> None:
        write_record(self.planned.record, self.search, self.planned.folder.name)


def _transient(error: Exception) -> EvergreenError:
    """The known transient error that `error` is; raises `error` if it is another."""
    known = classify(error)
    if known is None or not known.transient:
        raise error
    return known
