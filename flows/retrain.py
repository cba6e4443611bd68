"""The flow that retrains a model: download, Parquet, Ray Data transform, train, evaluate, register, report.

    evergreen retrain digits
    prefect deployment run retrain/digits

Both commands run the flow below. When a run with the same run key has finished before, the flow ends at once with that
run's version, unless the registry or the gate changed. An interrupted run resumes where it stopped.
"""

import logging
import os
import time
from typing import Any, cast

from prefect import flow

from flows.local.environment import enable_logging
from flows.local.prefect_signals import sigterm_ends_flow
from flows.prepare import prepare
from flows.run_form import form_of, nested
from flows.stopwatch import Stopwatch
from tasks.changes import hold_if_changed
from tasks.checks.plan_checks import check_plan
from tasks.checks.storage_check import check_storage
from tasks.checks.tracker_check import check_trackers
from tasks.download import download
from tasks.evaluate import evaluate
from tasks.flow_retries import retried_if_transient
from tasks.flow_runs import ReturnedResult, close_killed, completed, run_name
from tasks.night import close_killed_nights, night_recorded, note_dataset, note_plan
from tasks.preflight import checked_alongside
from tasks.register import register
from tasks.registry.aliases import ChampionMovedError
from tasks.registry.initial_weights import check_tokenizer, find_start, keep_initial_weights
from tasks.registry.unjudged import Unjudged, close_unjudged_run, give_up, unjudged_runs
from tasks.report import report
from tasks.reuse import find_release
from tasks.step import without_secrets
from tasks.trackers.mlflow_run import check_embedded_experiment, connect_patiently, failure_recorded
from tasks.train import keep_data_changes, keep_plan, train
from training.errors import HeldError, ResourceError, SettingError, classify
from training.plan import RunPlan, identify
from training.profile_records import DataCheck
from training.ray_cluster.capacity import resolve_here
from training.ray_cluster.controller import ray_for
from training.recipe import load
from training.records import DatasetVersion, Evaluation, Release, TrainedModel
from training.redaction import show_credentials
from training.storage.paths import home_to_write
from training.storage.record_files import write_record
from training.storage.run_lock import run_lock
from training.supervision.launch import finished

log = logging.getLogger("evergreen.retrain")
returned = ReturnedResult[Release | DataCheck]()
_COMPARISONS = 3  # at most, each with the champion at that time


@flow(name="retrain", flow_run_name=run_name, log_prints=False)
def retrain(
    recipe: str = "digits",
    settings: dict[str, Any] = {},  # noqa: B006 - Prefect shows it as what the field begins with
    force: bool = False,
    *,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
    data_path: str | None = None,
) -> Release:
    """Bring the model of a recipe up to date.

    Args:
        recipe: Name of a recipe that comes with Evergreen, or path of a recipe file.
        force: Train again even if nothing changed; an interrupted forced run is resumed.
        epochs: Passes over the training rows; boosting rounds of trees. Empty: the recipe's value.
        batch_size: Rows of one optimizer step, over all workers; trees have none. Empty: the recipe's value.
        learning_rate: Peak learning rate. Empty: the recipe's value.
        seed: Seed of order, augmentation and initial weights. Empty: the recipe's value.
        data_path: Folder or archive to read instead of the recipe's source. Empty: the recipe's value.
        settings: Any other setting, such as {"gate": {"floor": 0.9}, "scaling": {"num_workers": 4}}. The fields
            above override the same settings here. `evergreen retrain --help` lists all settings.
    """
    enable_logging()
    fields = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
        "data_path": data_path or None,
    }
    release = returned.begin()
    if release is None:
        with sigterm_ends_flow(), retried_if_transient(), without_secrets():
            try:
                release = bring_up_to_date(recipe, show_credentials(settings), fields, force)
            except HeldError as held:
                release = held.check
        returned.keep(release)
    # Prefect passes the data of the returned state to the caller.
    return cast("Release", completed(release))


retrain.__signature__ = form_of(retrain.fn)  # type: ignore[attr-defined]  # Prefect builds the form from it


def bring_up_to_date(
    recipe: str, settings: dict[str, Any], fields: dict[str, Any], force: bool = False
) -> Release:
    """Retrain inside a flow run: the arguments are those of :func:`retrain`, with its single settings in `fields`."""
    with night_recorded(recipe, settings) as night:
        return night.ended(_brought_up_to_date(recipe, settings, fields, force))


def _brought_up_to_date(
    recipe: str, settings: dict[str, Any], fields: dict[str, Any], force: bool
) -> Release:
    clock = Stopwatch()
    loaded, ref = load(recipe)
    if loaded.chosen:
        log.info("%s names neither trainer nor build_model; trainer: %s", ref.name, loaded.chosen)
    resolved = resolve_here(loaded.settings, settings, nested(fields, loaded.settings.trainer))
    if unused := loaded.unused_dataset(resolved):
        log.warning("%s", unused)
    check_trackers(resolved)
    check_storage(resolved)
    home = home_to_write()
    with run_lock(home, ref.name):
        close_killed(home, ref.name)
        close_killed_nights(home, ref.name)
        with clock.time("download"):
            files = download(recipe, resolved, str(home.root))
            plan = identify(
                home, ref, resolved, files, force, find_start(home, ref.name, resolved, wait=True)
            )
        note_plan(plan)
        if (done := find_release(plan, connect_patiently)) is not None:
            return done.model_copy(update={"seconds": clock.elapsed_s})
        check_embedded_experiment(plan)
        plan = keep_plan(plan)
        with failure_recorded(plan):
            check_plan(plan, loaded, plan.find_dataset(), with_model=False)
            keep_initial_weights(plan)
            with ray_for(resolved, clock.time("start-up")):
                with clock.time("preparation"):
                    version = plan.find_dataset() or prepare(plan)
                    plan = keep_data_changes(plan, version)
                    note_dataset(version, plan.data_changes)
                    check = hold_if_changed(plan, version, loaded)
                check_tokenizer(plan, version)
                trained_before = finished(plan.paths, plan.run_key) is not None
                with clock.time("preflight"), checked_alongside(plan, version), clock.time("training"):
                    trained = train(plan, version)
                if check is None:
                    hold_if_changed(plan, version, loaded, wait=True)
            for unjudged in unjudged_runs(connect_patiently(plan), plan):
                with clock.time("earlier versions"):
                    judge_unjudged(unjudged)
            evaluation, release = compare_and_register(plan, version, trained, clock)
            release = finish(plan, version, trained, evaluation, release, clock, trained_before)
    return release


def finish(
    plan: RunPlan,
    version: DatasetVersion,
    trained: TrainedModel,
    evaluation: Evaluation,
    release: Release,
    clock: Stopwatch,
    trained_before: bool,
) -> Release:
    """Write the report and, last, the record of the release, with the times by `clock`: the run is finished."""
    release = clock.timed(release, trained, trained_before)
    with clock.time("report"):
        report(plan, version, trained, evaluation, release)
    release = clock.timed(release, trained, trained_before)
    write_record(plan.paths.release, release, plan.paths.root.name)
    return release


def judge_unjudged(unjudged: Unjudged) -> None:
    """Judge a version of another run that was killed before its verdict; tag the version if that fails for good.

    After a failure that a user can remedy, such as a missing library, the next run tries again. Raises the errors for
    which :func:`_ends_this_run` is true, such as that of a full disk. Code of the other run's recipe is executed, so
    errors may have any type. The run's status in MLflow becomes that of :func:`finish_judged`, or KILLED without a
    verdict.
    """
    clock = Stopwatch()
    # Timed from now on; the training counts 0 s here.
    clock.began, clock.parts = time.perf_counter(), {"training": 0.0}
    try:
        evaluation, release = compare_and_register(unjudged.plan, unjudged.version, unjudged.trained, clock)
    except Exception as error:
        known = classify(error)
        if _ends_this_run(error):
            raise
        if isinstance(known, SettingError) or isinstance(error, ImportError):
            log.warning(
                "%s version %s is not judged in this run: %s", unjudged.plan.model, unjudged.number, error
            )
        else:
            why = str(known or f"{type(error).__name__}: {error}")
            give_up(connect_patiently(unjudged.plan), unjudged.plan.model, unjudged.number, why)
        close_unjudged_run(unjudged.plan, unjudged.number)
    else:
        finish_judged(unjudged, evaluation, release, clock)


def finish_judged(unjudged: Unjudged, evaluation: Evaluation, release: Release, clock: Stopwatch) -> None:
    """Finish the run of a version that was judged late, like an uninterrupted run.

    The status in MLflow becomes FINISHED. If the report fails, the version keeps its verdict, the status is FAILED,
    and the run's own command finishes the run. Raises as :func:`judge_unjudged`.
    """
    plan = unjudged.plan
    before = plan.paths.ingredients.stat()
    write_record(plan.paths.ingredients, plan, plan.paths.root.name)  # with the settings that judged it
    # The newest file is that of the recipe's last run, which is the current one.
    os.utime(plan.paths.ingredients, ns=(before.st_atime_ns, before.st_mtime_ns))
    try:
        with failure_recorded(plan):
            finish(plan, unjudged.version, unjudged.trained, evaluation, release, clock, trained_before=True)
    except Exception as error:
        if _ends_this_run(error):
            raise
        log.warning("%s version %s is judged, but its report failed: %s", plan.model, unjudged.number, error)


def _ends_this_run(error: Exception) -> bool:
    """Whether an error of another run's version ends this run, too: transient, ResourceError or Prefect's."""
    known = classify(error)
    is_passing = known is not None and (known.transient or isinstance(known, ResourceError))
    return is_passing or type(error).__module__.startswith("prefect")


def compare_and_register(
    plan: RunPlan, version: DatasetVersion, trained: TrainedModel, clock: Stopwatch
) -> tuple[Evaluation, Release]:
    """Evaluate and register; when another run's model became champion in between, compare with the new champion.

    Raises :class:`ChampionMovedError` when that happens three times.
    """
    for left in reversed(range(_COMPARISONS)):
        with clock.time("evaluation"):
            evaluation = evaluate(plan, version, trained)
        try:
            # Otherwise, a run that is killed after an alias has moved would count as finished with its earlier verdict.
            plan.paths.release.unlink(missing_ok=True)
            with clock.time("registration"):
                return evaluation, register(plan, version, trained, evaluation)
        except ChampionMovedError:
            if not left:
                raise
    raise AssertionError
