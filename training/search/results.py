"""Results of the trials of a search, read from the files of their runs; Ray and MLflow are not asked."""

from training.errors import (
    DataError,
    EvergreenError,
    ResourceError,
    SettingError,
    TrainingError,
    TransientError,
)
from training.plan import RunPlan
from training.search.planning import PlannedSearch
from training.search.progress import progress_of
from training.search.records import Scheduler, Search, Trial, TrialFailure, TrialResult
from training.storage.record_files import find_or_set_aside, find_record
from training.supervision.launch import finished


def known_results(planned: PlannedSearch, rewrites: bool = False) -> Search:
    """The search with the results that earlier commands recorded, and with those of trials whose runs have a result.

    If a trial has no result on record, the files of the trial's run show whether the training is finished or failed for
    good. A trial that ended early has no such file, and continues if the search's record is lost.
    `rewrites`: the caller holds the recipe's lock and writes the record again, so a damaged record is set aside.
    """
    read = find_or_set_aside if rewrites else find_record
    search = _of_plan(read(planned.record, Search, planned.folder.name), planned)
    for trial in planned.search.trials:
        plan, before = planned.plan_of(trial), search.result_of(trial)
        trained = finished(plan.paths, plan.run_key)
        if trained is None and before is not None and _is_lost(search, before):
            search, before = search.without_result(before), None
        # A trial that ended early keeps its result, so that the same command finds the same winner.
        if trained is not None and (before is None or before.status == "failed"):
            result = _result(plan, trial, search.metric, trained.seconds, crashed=False)
            search = search.with_result(result.model_copy(update={"reused": True}))
        elif before is None and (failure := _failure(planned, trial)) and not failure.transient:
            result = _result(plan, trial, search.metric, seconds=0.0, crashed=True)
            search = search.with_result(failed_result(planned.search.scheduler, result, failure))
    return search


def result_of_ended(planned: PlannedSearch, trial: Trial, seconds: float, crashed: bool) -> TrialResult:
    """The result of a trial that ended after `seconds`; `crashed` means that its process raised an error or died."""
    result = _result(planned.plan_of(trial), trial, planned.search.metric, seconds, crashed)
    if result.status != "failed":
        return result
    died = TrialFailure(error="the process of the trial died", transient=True)
    return failed_result(planned.search.scheduler, result, _failure(planned, trial) or died)


def without_winner(search: Search) -> EvergreenError:
    """The error of a search without a winner: each trial failed, or ended before the end of its first epoch."""
    failed = [result for result in search.results if result.status == "failed"]
    first = f" Trial {failed[0].number}: {failed[0].error}" if failed else ""
    text = f"none of the {len(search.trials)} trials of the search trained a model.{first}"
    kinds: list[type[EvergreenError]] = [SettingError, DataError, ResourceError, TransientError]
    found_kind = {kind.__name__: kind for kind in kinds}.get(failed[0].kind if failed else "")
    return (found_kind or (TransientError if any(result.transient for result in failed) else TrainingError))(
        text
    )


def _of_plan(recorded: Search | None, planned: PlannedSearch) -> Search:
    """The recorded search with the trials of `planned`, and with the results of those that are the same runs."""
    if recorded is None or recorded.trials == planned.search.trials:
        return recorded or planned.search
    before = {trial.number: trial.run_key for trial in recorded.trials}
    same = {trial.number for trial in planned.search.trials if before.get(trial.number) == trial.run_key}
    kept = tuple(result for result in recorded.results if result.number in same)
    update = {"trials": planned.search.trials, "results": kept, "published": False}
    return recorded.model_copy(update=update)


def _is_lost(search: Search, result: TrialResult) -> bool:
    """Whether a recorded result does not count without the trial's weights, which the caller did not find.

    With the scheduler pbt, other trials start from the weights of a finished trial.
    """
    return search.scheduler == "pbt" and result.status == "finished"


def _failure(planned: PlannedSearch, trial: Trial) -> TrialFailure | None:
    """The failure on record of the trial's run; trials of later generations may have got another trial's number."""
    failure = find_record(planned.failure_of(trial), TrialFailure, planned.folder.name)
    return None if failure is None or failure.run_key not in ("", trial.run_key) else failure


def failed_result(scheduler: Scheduler, result: TrialResult, why: TrialFailure) -> TrialResult:
    """`result` with the failure. With the scheduler pbt, the same command tries only errors again that may pass.

    Otherwise the next generation, which depends on all trials of this one, would never begin.
    """
    again = why.transient and (why.may_pass or scheduler != "pbt")
    return result.model_copy(update={"error": why.error, "transient": again, "kind": why.kind})


def _result(plan: RunPlan, trial: Trial, metric: str, seconds: float, crashed: bool) -> TrialResult:
    progress = progress_of(plan, metric)
    trained = finished(plan.paths, plan.run_key) is not None
    return TrialResult(
        number=trial.number,
        status="finished" if trained else "failed" if crashed else "stopped early",
        epochs=progress.epochs,
        best_epoch=progress.best.number if progress.best else None,
        validation_loss=progress.best.loss if progress.best else None,
        validation_score=progress.best.score if progress.best else None,
        seconds=seconds,
    )
