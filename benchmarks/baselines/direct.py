"""The steps of flow `retrain` called as plain functions (P6): no flow, no Prefect tasks, no Prefect server.

Side B of the row. Prefect's artifacts, which only Prefect shows, are left out; all other outputs equal the flow's.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tasks import evaluate, register, report
from tasks.download import fetch
from tasks.preflight import preflight
from tasks.report_page.page import render
from tasks.report_page.sections import figures
from tasks.reuse import find_release
from tasks.trackers.mlflow_run import close_run, connect_patiently, open_run, record_inputs
from tasks.trackers.publisher import Publisher
from tasks.train import keep_plan
from training.attempts.metrics import MetricsFile
from training.data.preparation.prepare import make_version, plan_shards, write_raw
from training.plan import RunPlan, identify
from training.ray_cluster.controller import ray_for
from training.recipe import load
from training.records import DatasetVersion, Release, TrainedModel
from training.settings.overrides import resolve
from training.storage.files import write_text
from training.storage.paths import Home
from training.storage.run_lock import run_lock
from training.supervision.launch import launch, make_job


def retrain(home: Home, recipe: str, overrides: dict[str, Any]) -> Release:
    """Like `flows.retrain.retrain`: the same Ray and the same workers; the export check runs during the training."""
    chosen, ref = load(recipe)
    settings = resolve(chosen.settings, overrides)
    with run_lock(home, ref.name):
        plan = identify(home, ref, settings, fetch(recipe, settings, home))
        if (done := find_release(plan, connect_patiently)) is not None:
            return done
        plan = keep_plan(plan)
        with ray_for(settings, nullcontext()):
            version = plan.find_dataset() or _prepared(plan, home)
            with ThreadPoolExecutor(1) as pool:
                checked = pool.submit(preflight.fn, plan, version)
                trained = _trained(plan, version)
                checked.result()
        evaluation = evaluate.evaluate.fn(plan, version, trained)
        release = register.register.fn(plan, version, trained, evaluation)
        _report(plan, version, trained, evaluation, release)
        write_text(plan.paths.release, release.model_dump_json(indent=1))
    return release


def _prepared(plan: RunPlan, home: Home) -> DatasetVersion:
    folder = home.raw_rows(plan.recipe.name, plan.fingerprint)
    data = plan.settings.data
    with ThreadPoolExecutor() as pool:
        raw = list(
            pool.map(lambda shard: write_raw(plan.files, shard, data, folder), plan_shards(plan.files, data))
        )
    target = home.dataset(plan.recipe.name, plan.fingerprint)
    return make_version(plan.recipe.name, plan.fingerprint, plan.files, raw, data, target, with_ray=True)


def _trained(plan: RunPlan, version: DatasetVersion) -> TrainedModel:
    def begin() -> tuple[Any, str]:
        client = connect_patiently(plan)
        run_id = open_run(client, plan)
        record_inputs(client, run_id, plan, version)
        return client, run_id

    publisher = Publisher(begin, MetricsFile(plan.paths.metrics), outage_s=60)
    with publisher.running():
        return launch(make_job(plan.run_key, plan.paths, plan.recipe, plan.settings, version))


def _report(
    plan: RunPlan, version: DatasetVersion, trained: TrainedModel, evaluation: Any, release: Release
) -> None:
    inputs = report.gather(plan, version, trained, evaluation, release)
    write_text(plan.paths.report, render(inputs))
    plan.paths.figures.mkdir(exist_ok=True)
    pictures: list[Path] = [
        *figures(inputs, plan.paths.figures),
        report.draw_predictions(version, evaluation, plan.paths.figures),
    ]
    client = connect_patiently(plan)
    client.log_artifact(release.mlflow_run_id, str(plan.paths.report))
    for picture in pictures:
        client.log_artifact(release.mlflow_run_id, str(picture), "figures")
    report.note_efficiency(client, plan, trained, release, inputs.words.row)
    close_run(client, release.mlflow_run_id, "FINISHED")
