"""Preview of a retraining, computed without Prefect or Ray: what the run would do, and what it would cost.

Torch is imported only when the recipe's model has not been checked with images of this shape yet.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from flows.estimate import Estimate, estimate, saved_step, steps_per_epoch, total_steps
from tasks.checks.damaged_columns import declared_columns
from tasks.checks.library_check import check_libraries
from tasks.checks.plan_checks import check_plan
from tasks.checks.tracker_check import check_trackers
from tasks.data_check import check_data, check_still_held
from tasks.gate.power import power_text
from tasks.night import note_plan
from tasks.registry.initial_weights import find_start
from tasks.reuse import find_release, read_release
from tasks.trackers.mlflow_run import connect_once
from training import identity
from training.data.dataset import open_columns
from training.data.sources import Source
from training.errors import EvergreenError, classify
from training.plan import RunPlan, choose_source, identify
from training.plan_changes import with_data_changes
from training.problems.gate_metrics import is_own, metric_for
from training.problems.row_metrics import ROW_METRICS
from training.profile_records import DataCheck
from training.ray_cluster.capacity import resolve_here
from training.recipe import Recipe, load
from training.records import DatasetVersion, GateMetric, Look, Record, Release, SourceFiles
from training.redaction import Redacted
from training.settings.overrides import describe
from training.settings.schema import Settings, TrainerName
from training.storage.paths import Home
from training.storage.record_files import find_record
from training.supervision.launch import finished
from training.trainers.base import trainer_named
from training.trainers.replay_outcome import read_outcome, spelled
from training.trainers.rows import training_rows

log = logging.getLogger("evergreen.plan")


class Preview(Record):
    """A plan for people: the steps that would run, the results that exist already, and the cost if it is known."""

    recipe: str
    run_key: str
    dataset_fingerprint: str = Field(description="identity of the dataset version")
    source: Redacted = Field(description="where the data come from")
    source_bytes: int
    outcome: str = Field(description="what the run would do, and why")
    first: bool = Field(description="whether the recipe has no earlier run in this home")
    changes: tuple[str, ...] = Field(description="what changed since the recipe's last run")
    steps: dict[str, str] = Field(description="what each step of the pipeline would do")
    train_rows: int | None = Field(description="None before preparation")
    test_rows: int | None = Field(description="None before preparation")
    dataset_bytes: int | None = Field(description="None before preparation")
    world_size: int = Field(description="number of workers")
    global_batch_size: int | None = Field(
        description="rows of a step over all workers; None: there are no batches"
    )
    batch_per_worker: int | None
    steps_per_epoch: int | None
    total_steps: int | None
    gate: str = Field(
        "", description="what gain the test rows can show; empty before preparation, and for losses"
    )
    estimated_seconds: float | None = Field(description="None: nothing to estimate from")
    estimated_from: str
    reproducible: str = Field(description="what the replay check of the recipe's last run found")
    trainer: TrainerName
    trainer_chosen: str = Field("", description="the chosen trainer, if the recipe names none")
    epochs: int = Field(description="epochs, or rounds of boosted trees, at most")
    patience: int | None = Field(description="epochs or rounds without a better loss that end the training")
    initial: str = Field("", description="the initial weights; empty: new weights")
    after_kill: str = Field(description="what the trainer promises after a kill")
    learned_rows: int | None = Field(description="training rows without validation rows")
    data: DataCheck | None = Field(
        None,
        description="comparison with the champion's data; None: not prepared, or nothing would be trained",
    )
    settings: dict[str, Any] = Field(description="all settings by dotted name")
    hint: str = Field("", description="a proposal for the recipe; empty: none")


def make_plan(
    recipe_name: str, overrides: dict[str, Any], home: Home, force: bool = False
) -> tuple[Recipe, RunPlan]:
    """Resolve settings and identify the run; fetches the source files if they are not in the home yet."""
    recipe, ref = load(recipe_name)
    settings = resolve_here(recipe.settings, overrides)
    files = choose_source(recipe, settings, home).fetch(home.sources / recipe.name)
    return recipe, identify(home, ref, settings, files, force, find_start(home, ref.name, settings))


def release_if_unchanged(
    recipe_name: str, overrides: dict[str, Any], home: Home, force: bool
) -> Release | None:
    """The release of an earlier run with the same run key, found without Prefect and Ray; else None.

    Before None is returned, everything is checked that :func:`preview` checks, but the model, which takes seconds to
    import: the flow checks the model while the workers start. Nothing is checked of data that are not downloaded yet,
    and after a transient error: the flow downloads and tries again.

    Raises :class:`training.errors.SettingError` and :class:`DataError` as :func:`preview`, and
    :class:`training.errors.HeldError` for a run that was held and that nobody has accepted since.
    """
    recipe, ref = load(recipe_name)
    settings = resolve_here(recipe.settings, overrides)
    if _is_to_be_downloaded(recipe, settings, home):
        check_trackers(settings)
        check_libraries(ref, trainer_named(settings.trainer).DISTRIBUTIONS)
        return None
    try:
        recipe, plan = make_plan(recipe_name, overrides, home, force)
        note_plan(plan)
        done = find_release(plan)
        if done is None:
            check_still_held(plan, declared_columns(recipe))
            check_plan(plan, recipe, plan.find_dataset(), with_model=False)
        return done
    except Exception as error:
        explained = classify(error)
        if explained is not None and explained.transient:  # the flow retries, and waits longer
            return None
        raise


def _is_to_be_downloaded(recipe: Recipe, settings: Settings, home: Home) -> bool:
    """Whether the recipe's source is a published one, without a path, and no earlier run has downloaded it."""
    published = settings.data.path is None and getattr(recipe.source, "path", "") is None
    return published and not (home.sources / recipe.name).is_dir()


def preview(recipe_name: str, overrides: dict[str, Any], home: Home, force: bool = False) -> Preview:
    """Describe everything that a run would do.

    Raises the errors that `evergreen retrain` would raise, as far as a few rows of the data, the champion and the
    model reveal them.
    """
    recipe, plan = make_plan(recipe_name, overrides, home, force)
    version, settings, done = plan.find_dataset(), plan.settings, find_release(plan)
    if unused := recipe.unused_dataset(settings):
        log.warning("%s", unused)
    plan = with_data_changes(plan, version)
    if done is None:
        check_plan(plan, recipe, version)
    check = _checked_data(plan, recipe, version) if done is None else None
    learned_rows = len(training_rows(open_columns(version, "train"), settings)[0]) if version else None
    batch, world_size = settings.training.rows_of_step, max(1, settings.scaling.num_workers)
    total = total_steps(learned_rows, settings) if learned_rows else None
    time = estimate(plan, version, total) if done is None else Estimate(0.0, "the run is finished already")
    return Preview(
        recipe=plan.recipe.name,
        run_key=plan.run_key,
        dataset_fingerprint=plan.fingerprint,
        source=plan.files.origin,
        source_bytes=plan.files.bytes,
        outcome=_outcome(plan, done, check),
        first=plan.first,
        changes=plan.changes,
        steps=_steps(plan, version, done),
        train_rows=version.rows("train") if version else None,
        test_rows=version.rows("test") if version else None,
        dataset_bytes=version.bytes if version else None,
        world_size=world_size,
        global_batch_size=batch,
        batch_per_worker=None if batch is None else batch // world_size,
        steps_per_epoch=steps_per_epoch(learned_rows, settings) if learned_rows else None,
        total_steps=total,
        gate=_power(plan, version) if version else "",
        estimated_seconds=time.seconds,
        estimated_from=time.why,
        reproducible=_last_replay(plan),
        trainer=settings.trainer,
        trainer_chosen=recipe.chosen,
        epochs=settings.epochs,
        patience=settings.training.patience,
        initial=plan.started_from if done is None else done.initial,
        after_kill=_promised(settings),
        learned_rows=learned_rows,
        data=check,
        settings=describe(settings),
        hint=_key_hint(choose_source(recipe, settings, home), plan.files),
    )


def _key_hint(source: Source, files: SourceFiles) -> str:
    """The proposal of a key for a table without one, if a column fits."""
    if files.kind != "table" or getattr(source, "key", True):
        return ""
    from training.data.tables.key_proposal import proposed_key

    name = proposed_key(files, getattr(source, "drop", ()))
    if name is None:
        return ""
    return (
        f'column {name} is unique: Table(..., key="{name}") keeps each row in its split when other columns of the row '
        "change"
    )


def _checked_data(plan: RunPlan, recipe: Recipe, version: DatasetVersion | None) -> DataCheck | None:
    """The comparison of a prepared dataset with the champion's; None if the registry does not answer."""
    if version is None:
        return None
    try:
        return check_data(plan, version, declared_columns(recipe), partial(connect_once, plan))
    except EvergreenError as error:
        if error.transient:
            return None
        raise


def _outcome(plan: RunPlan, done: Release | None, check: DataCheck | None) -> str:
    if done is not None:
        alias = "no alias" if done.alias == "none" else done.alias
        return f"nothing to do: already {done.model} version {done.version} ({alias})"
    if check is not None and check.outcome == "held":
        return check.summary
    if plan.first:
        return "first run of this recipe in this home"
    if read_release(plan) is not None:
        return "trained already; judged and registered again, as the gate or the registry changed"
    if saved_step(plan):
        return "resumes an interrupted run"
    return "new run" + (f", because of: {'; '.join(plan.changes)}" if plan.changes else "")


def _power(plan: RunPlan, version: DatasetVersion) -> str:
    """What gain the test rows can show, from the comparison of the recipe's newest run that has one by this metric."""
    metric = metric_for(plan.settings.gate, version, _last_metric(plan))
    if metric is None or not ROW_METRICS[metric.name].is_share:
        return ""
    own = is_own(metric, version.problem)
    measures = {"accuracy"} if own else {f"row_{metric.name}"}
    look = next((look for look in _last_looks(plan) if look.measure in measures), None)
    text = power_text(version.rows("test"), ROW_METRICS[metric.name].word, plan.settings.gate.policy, look)
    return text if own else f"{text}; this metric decides, as {metric.why}"


def _last_metric(plan: RunPlan) -> GateMetric | None:
    release = _last_release(plan)
    return None if release is None else release.verdict.metric


def _last_looks(plan: RunPlan) -> list[Look]:
    release = _last_release(plan)
    return [] if release is None else [look for look in release.verdict.looks if not look.baseline]


def _last_release(plan: RunPlan) -> Release | None:
    """The release of the recipe's newest finished run in this home."""
    for run in reversed(identity.runs_of(Home(Path(plan.home)), plan.recipe.name)):
        if (release := find_record(run.release, Release, run.root.name)) is not None:
            return release
    return None


def _steps(plan: RunPlan, version: DatasetVersion | None, done: Release | None) -> dict[str, str]:
    trained = finished(plan.paths, plan.run_key) is not None
    ingredients = ("data", "settings", "recipe", "code", "versions", "initial_weights", "forced")
    return {
        "download": "files are present and checked",
        "prepare": "cached" if version else "runs: " + _why(plan, ("data",), "not prepared yet"),
        "train": "cached" if trained else "runs: " + _why(plan, ingredients, "not finished yet"),
        "evaluate, register, report": "done" if done else "run",
    }


def _last_replay(plan: RunPlan) -> str:
    """The result of the replay check of the newest run that has one."""
    for run in reversed(identity.runs_of(Home(Path(plan.home)), plan.recipe.name)):
        if (outcome := read_outcome(run)) is not None:
            return f"last run: {spelled(outcome.reproducible, outcome.reason)}"
    return "known after the first run"


def _promised(settings: Settings) -> str:
    """What the trainer promises for a training that is killed and started again."""
    promise = trainer_named(settings.trainer).promise(settings)
    unit = {"step": "step", "epoch": "epoch", "round": "block of rounds"}[promise.resumes]
    same = (
        "to the same bits" if promise.same_bits_after_kill else "to a model that may differ in its last bits"
    )
    text = f"resumes at the newest saved {unit}, {same}"
    return text + ("; any number of workers gives these bits" if promise.any_workers else "")


def _why(plan: RunPlan, ingredients: tuple[str, ...], otherwise: str) -> str:
    if plan.first:
        return "first run"
    changed = [change for change in plan.changes if change.partition(":")[0].partition(".")[0] in ingredients]
    return "; ".join(changed) or otherwise
