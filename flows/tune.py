"""The flow `tune`: prepare the data once, train the trials of a search on Ray Tune, and retrain with the best values.

    evergreen tune digits --space training.learning_rate=loguniform(1e-4,1e-1)
    prefect deployment run tune/digits-tune

A trial is a run of the recipe with other settings, so each trial has a run key: a trial that was trained before is
reused, and an interrupted trial resumes from its checkpoint. The winner is the trial with the lowest validation loss.
Trials never read the test split; the retraining with the winner's values does.
"""

from contextlib import ExitStack
from typing import Any, cast

from prefect import flow
from prefect.states import Completed

from flows.local.environment import enable_logging
from flows.local.prefect_signals import sigterm_ends_flow
from flows.prepare import prepare
from flows.retrain import bring_up_to_date
from flows.search_outcome import outcome_of
from flows.stopwatch import Stopwatch
from tasks.changes import hold_if_changed
from tasks.checks.library_check import check_installed
from tasks.checks.storage_check import check_storage
from tasks.checks.tracker_check import check_trackers
from tasks.download import download
from tasks.flow_retries import retried_if_transient
from tasks.flow_runs import ReturnedResult, close_killed, completed, run_name
from tasks.registry.initial_weights import find_start
from tasks.search import search
from tasks.step import without_secrets
from tasks.train import keep_plan
from training.errors import HeldError
from training.profile_records import DataCheck
from training.ray_cluster.capacity import resolve_here
from training.ray_cluster.cluster import ray_cluster
from training.recipe import Recipe, load
from training.records import DatasetVersion
from training.redaction import show_credentials
from training.search.generations import grown
from training.search.planning import (
    PlannedSearch,
    Request,
    at_version,
    check_request,
    plan_search,
    with_values,
)
from training.search.records import Scheduler, SearchResult
from training.search.results import known_results, without_winner
from training.settings.schema import Settings
from training.storage.paths import home_to_write
from training.storage.run_lock import run_lock

returned = ReturnedResult[SearchResult | DataCheck]()


@flow(name="tune", flow_run_name=run_name, log_prints=False)
def tune(
    recipe: str = "digits",
    space: dict[str, str] = {},  # noqa: B006 - Prefect shows it as what the field begins with
    trials: int = 8,
    scheduler: Scheduler = "asha",
    concurrent: int | None = None,
    seed: int = 0,
    generations: int | None = None,
    settings: dict[str, Any] = {},  # noqa: B006
    retrain_winner: bool = True,
) -> SearchResult:
    """Search settings with less validation loss, and retrain with the best.

    Args:
        recipe: Name of a recipe that comes with Evergreen, or path of a recipe file.
        space: Values of each searched setting, such as {"training.learning_rate": "loguniform(1e-4,1e-1)"}.
        trials: Number of trials, each a training with other values.
        scheduler: asha ends trials early that are worse than others; pbt (population-based training) trains all in
            several generations, each from the weights of the one before; none trains all to the end.
        concurrent: Trials at a time; empty: as many as the CPUs or GPUs allow.
        seed: Seed of the trials' values.
        generations: Number of generations with scheduler pbt; empty: 4.
        settings: Settings that all trials and the retraining share, such as {"gate": {"floor": 0.9}}.
        retrain_winner: Retrain with the winner's values afterwards: compare, promote or keep.
    """
    enable_logging()
    request = Request(space, trials, scheduler, seed, concurrent, generations)
    result = returned.begin()
    if result is None:
        with sigterm_ends_flow(), retried_if_transient(), without_secrets():
            try:
                result = _tune(recipe, request, show_credentials(settings), retrain_winner)
            except HeldError as held:
                result = held.check
        returned.keep(result)
    state: Any
    if isinstance(result, DataCheck):
        state = completed(result)
    else:
        state = Completed(message=f"trial {result.winner} of {len(result.search.trials)} won", data=result)
    return cast("SearchResult", state)  # Prefect passes the data of the returned state to the caller


def _tune(recipe: str, request: Request, settings: dict[str, Any], retrain_winner: bool) -> SearchResult:
    clock = Stopwatch()
    chosen, ref = load(recipe)
    resolved = resolve_here(chosen.settings, settings)
    check_request(request, resolved)
    if retrain_winner:
        check_trackers(resolved)
    check_storage(resolved)
    home = home_to_write()
    with ExitStack() as ray:
        with run_lock(home, ref.name):
            close_killed(home, ref.name)
            files = download(recipe, resolved, str(home.root))
            settings, start = at_version(settings, find_start(home, ref.name, resolved, wait=True))
            resolved = resolve_here(chosen.settings, settings)
            planned = grown(plan_search(home, ref, resolved, files, request, start))
            search_record = known_results(planned)
            if not search_record.complete:
                ray.enter_context(ray_cluster(resolved))
                search_record = search(planned, _dataset(planned, chosen, resolved), request.concurrent)
                planned = grown(planned)
        winner = search_record.winner
        if winner is None:
            raise without_winner(search_record)
        overrides = with_values(settings, planned.overrides_of(winner))
        release = bring_up_to_date(recipe, overrides, {}) if retrain_winner else None
    made = outcome_of(recipe, planned, search_record, settings, release)
    return made.model_copy(update={"seconds": clock.elapsed_s})


def _dataset(planned: PlannedSearch, recipe: Recipe, settings: Settings) -> DatasetVersion:
    """The dataset version that all trials share; prepared, if missing, with the settings of a retraining.

    Raises :class:`HeldError` for a dataset with which a retraining would be held.
    """
    plan = keep_plan(planned.plans[0])  # the preparation reads the run's copy of the recipe
    check_installed(plan, recipe)
    plan = plan.model_copy(update={"settings": settings})
    version = plan.find_dataset() or prepare(plan)
    hold_if_changed(plan, version, recipe, wait=True)
    return version
