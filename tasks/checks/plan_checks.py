"""In: a plan whose run has not begun. Out: nothing, or the error with which `evergreen retrain` would refuse it.

Checks that need all rows are left to the data preparation: `evergreen retrain` makes them before it trains.
"""

from pathlib import Path

from tasks.checks.model_checks import check_model, compare_shapes
from tasks.trackers.embedded_store import champion_tags
from training.data.manifest import read_manifest
from training.data.preparation.source_check import check_source
from training.errors import DataError
from training.plan import RunPlan
from training.recipe import Recipe, is_built_in
from training.records import DatasetVersion, ImageShape
from training.storage.paths import Home
from training.supervision.launch import finished

_DATASET_TAG = "evergreen.dataset"


def check_plan(plan: RunPlan, recipe: Recipe, version: DatasetVersion | None) -> None:
    """Check a few rows, the champion's image shape and the model, unless they are known to be fine already.

    Raises :class:`training.errors.DataError`, :class:`SettingError` or :class:`TrainingError`.
    """
    home = Home(Path(plan.home))
    if finished(plan.paths, plan.run_key) is not None or _is_proven(plan, recipe):
        return
    if version is not None:
        shape, classes = version.shape, len(version.classes)
    else:
        refused = home.refused_rows(plan.recipe.name, plan.fingerprint)
        shape, classes = check_source(plan.files, plan.settings.data, refused), len(plan.files.classes)
    _check_champion(home, plan, shape)
    if classes:  # otherwise the classes are known only after the rows have been prepared
        check_model(plan, lambda: recipe, shape, classes)


def _is_proven(plan: RunPlan, recipe: Recipe) -> bool:
    """Whether the recipe comes with Evergreen and reads the images that its model was written for."""
    ours, theirs = plan.settings.data, recipe.settings.data
    changed = any(getattr(ours, name) != getattr(theirs, name) for name in ("path", "image_size", "channels"))
    return not changed and is_built_in(plan.recipe)


def _check_champion(home: Home, plan: RunPlan, shape: ImageShape) -> None:
    """Compare image shapes with the embedded store's champion, if the champion's dataset is still in this home."""
    if plan.settings.tracking.uri is not None:
        return
    number, tags = champion_tags(home, plan.model)
    if number is None or _DATASET_TAG not in tags:
        return
    fingerprint = tags[_DATASET_TAG]
    try:
        dataset = read_manifest(home.dataset(plan.recipe.name, fingerprint), fingerprint)
    except DataError:
        return  # removed by `evergreen gc`, or of another recipe: preflight checks the champion itself
    compare_shapes(plan.model, number, dataset.shape, shape)
