"""Retrain a model: download -> Parquet -> Ray Data transform -> train -> evaluate -> register -> report.

    evergreen retrain digits
    python -m flows.retrain digits
    prefect deployment run retrain/digits

All three run the flow below. A run whose key was seen before ends at once with the version it made; a run that
was interrupted goes on where it stopped.
"""

import sys
from typing import TYPE_CHECKING

from prefect import flow

from flows.environment import speak
from flows.prepare import prepare
from flows.stopwatch import Stopwatch
from tasks.download import download
from tasks.evaluate import evaluate
from tasks.flow_runs import close_killed
from tasks.preflight import checked_alongside
from tasks.register import register
from tasks.registry import ChampionMovedError
from tasks.report import report
from tasks.reuse import find_release
from tasks.step import without_secrets
from tasks.tracking import connect_patiently, failure_recorded
from tasks.train import keep_plan, train
from training.controller import ray_for
from training.files import write_text
from training.launch import finished
from training.overrides import filled_in, optional
from training.paths import home
from training.plan import RunPlan, identify
from training.recipe import load
from training.records import DatasetVersion, Evaluation, Release, TrainedModel
from training.room import resolve_here
from training.run_lock import run_lock
from training.settings import Settings

if TYPE_CHECKING:

    class SettingsForm(Settings):
        """Every setting, each optional: what is left empty keeps the recipe's value."""
else:
    SettingsForm = optional(Settings, "SettingsForm")

_COMPARISONS = 3  # each with the champion of the moment


@flow(name="retrain", flow_run_name="retrain-{recipe}", log_prints=False)
def retrain(recipe: str = "digits", settings: SettingsForm = SettingsForm(), force: bool = False) -> Release:  # noqa: B008
    """Bring the model of a recipe up to date.

    Args:
        recipe: Name of a recipe that comes with Evergreen, or path of a recipe file.
        settings: Overrides of the recipe's settings; what is left empty keeps the recipe's value.
        force: Train anew even if nothing changed; a forced run that was interrupted goes on.
    """
    speak()
    with without_secrets():
        return _retrain(recipe, filled_in(settings), force)


def _retrain(recipe: str, overrides: dict[str, object], force: bool) -> Release:
    clock = Stopwatch()
    chosen, ref = load(recipe)
    resolved = resolve_here(chosen.settings, overrides)
    place = home()
    with run_lock(place, ref.name):
        close_killed(place, ref.name)
        with clock.time("download"):
            files = download(recipe, resolved, str(place.root))
            plan = identify(place, ref, resolved, files, force)
        if (done := find_release(plan, connect_patiently)) is not None:
            return done.model_copy(update={"seconds": clock.elapsed_s})
        plan = keep_plan(plan)
        with failure_recorded(plan):
            with ray_for(resolved, clock.time("start-up")):
                with clock.time("preparation"):
                    version = plan.find_dataset() or prepare(plan)
                trained_before = finished(plan.paths, plan.run_key) is not None
                with clock.time("preflight"), checked_alongside(plan, version), clock.time("training"):
                    trained = train(plan, version)
            evaluation, release = compare_and_register(plan, version, trained, clock)
            release = clock.timed(release, trained, trained_before)
            with clock.time("report"):
                report(plan, version, trained, evaluation, release)
            release = clock.timed(release, trained, trained_before)
            write_text(plan.paths.release, release.model_dump_json(indent=1))
    return release


def compare_and_register(
    plan: RunPlan, version: DatasetVersion, trained: TrainedModel, clock: Stopwatch
) -> tuple[Evaluation, Release]:
    """Evaluate and register; when another run's model became champion in between, compare with that one."""
    for left in reversed(range(_COMPARISONS)):
        with clock.time("evaluation"):
            evaluation = evaluate(plan, version, trained)
        try:
            with clock.time("registration"):
                return evaluation, register(plan, version, trained, evaluation)
        except ChampionMovedError:
            if not left:
                raise
    raise AssertionError


if __name__ == "__main__":
    from flows.cli import main

    sys.exit(main(["retrain", *sys.argv[1:]]))
