"""In: a registered model. Out: this home's runs whose version was registered but never judged, ready to be judged.

A run that is killed between the registration of its version and the verdict leaves a version without a verdict.
Repeating the command would finish that run, but after a change of the data or the recipe the same command starts
another run. So the next run of the recipe judges such versions before its own.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tasks.registry.aliases import VERDICT_TAG, WEIGHTS_TAG
from tasks.trackers.mlflow_run import (
    HOME_TAG,
    LONGEST_REASON,
    RECIPE_TAG,
    RUN_KEY_TAG,
    close_run,
    connect_patiently,
    is_of_another_home,
    tags_of_run,
)
from tasks.trackers.paged_search import all_pages
from training.plan import RunPlan
from training.records import DatasetVersion, TrainedModel
from training.storage.paths import Home, RunPaths
from training.storage.record_files import find_record
from training.supervision.launch import finished

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.register")


NOT_JUDGED = "not judged"


class Unjudged(NamedTuple):
    """A finished training run whose registered version `number` has no verdict."""

    number: str
    plan: RunPlan
    version: DatasetVersion
    trained: TrainedModel


def unjudged_runs(client: "MlflowClient", plan: RunPlan) -> list[Unjudged]:
    """Other runs of the plan's recipe in this home whose version of the plan's model has no verdict, oldest first.

    A version that can no longer be judged, because its run or its dataset was removed, is tagged as not judged.
    """
    unjudged = []
    versions = all_pages(client.search_model_versions, f"name = '{plan.model}'")
    for version in sorted(versions, key=lambda model_version: int(model_version.version)):
        key = version.tags.get(RUN_KEY_TAG, "")
        if (
            VERDICT_TAG in version.tags
            or not key
            or key == plan.run_key
            or not _is_ours(client, plan, version.run_id)
        ):
            continue
        run = _run_of(plan, key, version.tags.get(WEIGHTS_TAG, ""))
        if run is not None:
            log.info(
                "%s version %s was never judged, because its run was killed; it is judged first",
                plan.model,
                version.version,
            )
            unjudged.append(Unjudged(str(version.version), *run))
            continue
        why = "its run was killed before the verdict, and its files were removed"
        give_up(client, plan.model, str(version.version), why)
    return unjudged


def is_judged_elsewhere(client: "MlflowClient", home: Home, model: str, number: str) -> bool:
    """Whether a version has the verdict of another home that made the same model before."""
    verdict = client.get_model_version(model, number).tags.get(VERDICT_TAG, NOT_JUDGED)
    return verdict != NOT_JUDGED and is_made_elsewhere(client, home, model, number)


def is_made_elsewhere(client: "MlflowClient", home: Home, model: str, number: str) -> bool:
    """Whether another home made the version. A version whose MLflow run names no home counts as this home's."""
    return is_of_another_home(client, home, client.get_model_version(model, number).run_id)


def give_up(client: "MlflowClient", model: str, number: str, why: str) -> None:
    """Tag a version as not judged, so that no later run tries to judge the version again."""
    log.warning("%s version %s is not judged: %s", model, number, why)
    client.set_model_version_tag(model, number, VERDICT_TAG, NOT_JUDGED)
    client.set_model_version_tag(model, number, "evergreen.why", why[:LONGEST_REASON])


def close_unjudged_run(plan: RunPlan, number: str) -> None:
    """Set the MLflow run of version `number`, which stays unjudged, to KILLED."""
    client = connect_patiently(plan)
    if run_id := client.get_model_version(plan.model, number).run_id:
        close_run(client, run_id, "KILLED")


def _is_ours(client: "MlflowClient", plan: RunPlan, run_id: str | None) -> bool:
    """Whether the MLflow run belongs to this home and to the plan's recipe, as several recipes may share a model.

    Every home judges only its own versions, and every recipe only its own, since it holds the lock of its runs alone.
    """
    tags = tags_of_run(client, run_id)
    ours = (Home(Path(plan.home)).identity, plan.recipe.name)
    return (tags.get(HOME_TAG), tags.get(RECIPE_TAG)) == ours


def _run_of(plan: RunPlan, run_key: str, weights: str) -> tuple[RunPlan, DatasetVersion, TrainedModel] | None:
    """The run with this key, or None unless its plan, dataset and weights still exist and match."""
    paths: RunPaths = Home(Path(plan.home)).run(plan.recipe.name, run_key)
    kept = find_record(paths.ingredients, RunPlan, paths.root.name)
    trained = finished(paths, run_key)
    if kept is None or trained is None or trained.weights_digest != weights or kept.run_key != run_key:
        return None
    # The home may have moved since, and the tracking store must be the store in which the version was found.
    settings = kept.settings.model_copy(
        update={"tracking": plan.settings.tracking, "gate": plan.settings.gate}
    )
    now = kept.model_copy(update={"home": plan.home, "settings": settings})
    dataset = now.find_dataset()
    return None if dataset is None else (now, dataset, trained)
