"""In: a plan whose run has not begun. Out: nothing, or the reason why `evergreen retrain` would refuse it.

What needs all rows is left to the preparation: `evergreen retrain` checks these before it trains.
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
    """Look at a few rows, the champion's image shape and the model, as far as each is not known to be fine.

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
    if classes:  # else the labels are not known before the rows are prepared
        check_model(plan, lambda: recipe, shape, classes)


def _is_proven(plan: RunPlan, recipe: Recipe) -> bool:
    """Whether the recipe comes with Evergreen and its images are those that its model was made for."""
    ours, theirs = plan.settings.data, recipe.settings.data
    changed = any(getattr(ours, name) != getattr(theirs, name) for name in ("path", "image_size", "channels"))
    return not changed and is_built_in(plan.recipe)


def _check_champion(home: Home, plan: RunPlan, shape: ImageShape) -> None:
    """Compare image shapes with the champion of the embedded store, where its dataset is still in this home."""
    if plan.settings.tracking.uri is not None:
        return
    number, tags = champion_tags(home, plan.model)
    if number is None or _DATASET_TAG not in tags:
        return
    fingerprint = tags[_DATASET_TAG]
    try:
        dataset = read_manifest(home.dataset(plan.recipe.name, fingerprint), fingerprint)
    except DataError:
        return  # removed by `evergreen gc`, or another recipe's: preflight asks the model itself
    compare_shapes(plan.model, number, dataset.shape, shape)
