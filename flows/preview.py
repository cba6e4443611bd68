"""What a retraining would do, before anything is spent: without Prefect, torch or Ray."""

from pathlib import Path
from typing import Any

from tasks.reuse import find_release, read_release
from training import identity
from training.cluster import check_workers_fit
from training.dataset import open_columns
from training.errors import EvergreenError
from training.feeds import training_rows
from training.launch import finished
from training.order import SampleOrder
from training.overrides import describe, resolve
from training.paths import Home
from training.plan import RunPlan, choose_source, identify
from training.recipe import load
from training.records import Record, Release


class Preview(Record):
    """A plan for people: what would run, what is there already, and what it will cost as far as that is known."""

    recipe: str
    run_key: str
    dataset_fingerprint: str
    source: str
    source_bytes: int
    outcome: str
    changes: tuple[str, ...]
    steps: dict[str, str]
    train_rows: int | None
    test_rows: int | None
    dataset_bytes: int | None
    world_size: int
    global_batch_size: int
    batch_per_worker: int
    steps_per_epoch: int | None
    total_steps: int | None
    estimated_seconds: float | None
    settings: dict[str, Any]


def make_plan(recipe_name: str, overrides: dict[str, Any], place: Home, force: bool = False) -> RunPlan:
    """Resolve settings and identify the run; fetches the source when it is not here yet."""
    recipe, ref = load(recipe_name)
    settings = resolve(recipe.settings, overrides)
    check_workers_fit(settings)
    files = choose_source(recipe, settings, place).fetch(place.sources / recipe.name)
    return identify(place, ref, settings, files, nonce="forced" if force else None)


def release_if_unchanged(recipe_name: str, overrides: dict[str, Any], place: Home) -> Release | None:
    """The release of an earlier run with the same key, found without starting anything."""
    recipe, _ = load(recipe_name)
    check_workers_fit(resolve(recipe.settings, overrides))
    if identity.latest_ingredients(place, recipe.name) is None:
        return None
    try:
        return find_release(make_plan(recipe_name, overrides, place))
    except EvergreenError as error:
        if error.transient:  # the flow tries again, with patience
            return None
        raise


def preview(recipe_name: str, overrides: dict[str, Any], place: Home, force: bool = False) -> Preview:
    """Look at everything a run would do."""
    plan = make_plan(recipe_name, overrides, place, force)
    version = plan.find_dataset()
    settings = plan.settings
    learn = len(training_rows(open_columns(version, "train"), settings)[0]) if version else None
    order = SampleOrder(learn, settings.training.global_batch_size, settings.seed) if learn else None
    total = order.steps_per_epoch * settings.training.epochs if order else None
    if total and settings.training.max_steps:
        total = min(total, settings.training.max_steps)
    return Preview(
        recipe=plan.recipe.name,
        run_key=plan.run_key,
        dataset_fingerprint=plan.fingerprint,
        source=plan.files.origin,
        source_bytes=plan.files.bytes,
        outcome=_outcome(plan),
        changes=plan.changes,
        steps=_steps(plan, version is not None),
        train_rows=version.rows("train") if version else None,
        test_rows=version.rows("test") if version else None,
        dataset_bytes=version.bytes if version else None,
        world_size=max(1, settings.scaling.num_workers),
        global_batch_size=settings.training.global_batch_size,
        batch_per_worker=settings.local_batch_size,
        steps_per_epoch=order.steps_per_epoch if order else None,
        total_steps=total,
        estimated_seconds=_estimate(plan, total),
        settings=describe(settings),
    )


def _outcome(plan: RunPlan) -> str:
    done = find_release(plan)
    if done is not None:
        return f"nothing to do: already {done.model} version {done.version} ({done.alias})"
    if plan.first:
        return "first run of this recipe in this home"
    if read_release(plan) is not None:
        return "trained already; judged and registered anew, as the gate or the registry changed"
    if plan.paths.checkpoints.is_dir() and any(plan.paths.checkpoints.glob("step-*")):
        return "goes on with an interrupted run"
    return "new run" + (f", because of: {'; '.join(plan.changes)}" if plan.changes else "")


def _steps(plan: RunPlan, prepared: bool) -> dict[str, str]:
    trained = finished(plan.paths, plan.run_key) is not None
    return {
        "download": "files are here and checked",
        "prepare": "cached" if prepared else "runs: " + _why(plan, ("data",)),
        "train": "cached"
        if trained
        else "runs: " + _why(plan, ("data", "settings", "recipe", "code", "versions", "forced")),
        "evaluate, register, report": "done" if find_release(plan) else "run",
    }


def _why(plan: RunPlan, ingredients: tuple[str, ...]) -> str:
    if plan.first:
        return "first run"
    changed = [change for change in plan.changes if change.partition(":")[0].partition(".")[0] in ingredients]
    return "; ".join(changed) or "not finished yet"


def _estimate(plan: RunPlan, total_steps: int | None) -> float | None:
    """Seconds, from the speed of the newest finished run of this recipe; None without one."""
    kept = sorted(
        Home(Path(plan.home)).runs(plan.recipe.name).glob("*/release.json"), key=lambda p: p.stat().st_mtime
    )
    if not kept or not total_steps:
        return None
    last = Release.model_validate_json(kept[-1].read_text())
    trained = finished(type(plan.paths)(kept[-1].parent), last.run_key)
    if trained is None or not trained.steps:
        return None
    loop = trained.goodput.total_s
    return last.seconds - loop + loop * total_steps / trained.steps
