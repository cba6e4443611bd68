"""In: a plan whose run has not begun. Out: nothing, or the error because of which the run can't succeed.

`evergreen plan` and `evergreen retrain` both call this before Prefect or Ray start, and so refuse alike; the flow calls
it again, for runs of a deployment. Checks that need the rows of all images are part of the data preparation, and the
flow checks the model while its workers start.
"""

import logging
from pathlib import Path

from tasks.checks.damaged_columns import check_columns_sound, declared_columns
from tasks.checks.initial_weights_check import check_initial_weights
from tasks.checks.library_check import check_installed
from tasks.checks.model_checks import check_comparable, check_same_transform
from tasks.checks.storage_check import check_storage_reads
from tasks.checks.tracker_check import check_trackers
from tasks.model_formats.base import format_of
from tasks.trackers.embedded_store import champion_tags
from tasks.trackers.mlflow_run import check_embedded_experiment
from training.data.manifest import read_manifest
from training.data.preparation.source_check import check_not_refused, check_source
from training.data.preprocessing.preparation import check_declared
from training.data.tables.table_check import check_table
from training.data.text.text_check import check_text
from training.errors import DataError
from training.plan import RunPlan
from training.problems import problem_named
from training.recipe import Recipe, is_built_in
from training.recipe_checks import check_augmentation_of
from training.records import DatasetVersion, TableSchema
from training.storage.paths import Home
from training.supervision.launch import finished
from training.trainers.base import check_dataset

log = logging.getLogger("evergreen.plan")

_DATASET_TAG, _TRANSFORM_TAG = "evergreen.dataset", "evergreen.transform"


def check_plan(
    plan: RunPlan, recipe: Recipe, version: DatasetVersion | None, with_model: bool = True
) -> None:
    """Check libraries, metrics, trackers, stores, the rows, the initial weights, the champion's inputs and the model.

    `with_model=False` leaves out the model, whose libraries take seconds to import. Checks nothing for a finished run.
    The model of a built-in recipe fits its own images, so that model is not checked. For images, a few rows are
    checked; for a table, the target of every row.
    Raises :class:`training.errors.DataError`, :class:`SettingError` or :class:`TrainingError`.
    """
    home = Home(Path(plan.home))
    if finished(plan.paths, plan.run_key) is not None:
        return
    check_installed(plan, recipe)
    check_trackers(plan.settings)
    check_embedded_experiment(plan)
    check_storage_reads(plan.settings)
    proven = _is_proven(plan, recipe)
    look = not proven or plan.initial is not None or _has_other_champion(home, plan)
    expected = version or _expected_version(home, plan, look)
    check_augmentation_of(recipe, expected)
    check_dataset(plan.settings, expected)
    if look:
        check_initial_weights(plan, recipe, expected)
        differences = _check_champion(home, plan, recipe, expected)
        if differences and with_model:  # a run says so in its preflight
            log.warning("%s", differences)
    if proven or not with_model:
        return
    check = getattr(format_of(plan.settings), "check_untrained", None)
    # Before the rows are prepared, the classes of images may be unknown, and so may the categories of tables.
    known = version is not None or (
        expected.has_images and problem_named(expected.problem).outputs(expected) > 0
    )
    if known and check is not None:
        check(plan, lambda: recipe, expected)


def _expected_version(home: Home, plan: RunPlan, look: bool) -> DatasetVersion:
    """The dataset version as far as it is known before preparation, without rows and statistics.

    Without `look`, no image is read, which saves `plan` a second, and the shape of images is (0, 0, 0).
    Raises :class:`DataError` for rows that preparation would refuse.
    """
    refused = home.refused_rows(plan.recipe.name, plan.fingerprint)
    table: TableSchema | None = None
    shape: tuple[int, ...]
    check_not_refused(plan.files, refused)
    if plan.files.kind == "table":
        table = check_table(plan.files, plan.settings.data, plan.recipe.problem)
        shape = (len(table.columns),)
        if plan.recipe.preprocessors and not plan.recipe.transform:
            check_declared(plan.recipe.preprocessors, plan.files)
    elif plan.files.kind == "text":
        table = check_text(plan.files, plan.settings.data, plan.recipe.problem)
        shape = (plan.settings.data.max_tokens,)
    else:
        shape = check_source(plan.files, plan.settings.data, refused) if look else (0, 0, 0)
        if plan.files.target:
            table = TableSchema(target=plan.files.target, columns=())
    return DatasetVersion(
        name=plan.recipe.name,
        fingerprint=plan.fingerprint,
        path=str(home.dataset(plan.recipe.name, plan.fingerprint)),
        classes=plan.files.classes,
        shape=shape,
        parts={"train": (), "test": ()},
        label_counts={"train": (), "test": ()},
        mean=(),
        std=(),
        source_digest=plan.files.digest,
        source_origin=plan.files.origin,
        problem=plan.recipe.problem,
        table=table,
        transform=plan.recipe.transform,
    )


def _is_proven(plan: RunPlan, recipe: Recipe) -> bool:
    """Whether a built-in recipe is used with its own `data.path`, `data.image_size` and `data.channels`."""
    ours, theirs = plan.settings.data, recipe.settings.data
    changed = any(getattr(ours, name) != getattr(theirs, name) for name in ("path", "image_size", "channels"))
    return not changed and is_built_in(plan.recipe)


def _has_other_champion(home: Home, plan: RunPlan) -> bool:
    """Whether the champion of the embedded store was trained on another dataset, which may have other inputs."""
    if plan.settings.tracking.uri is not None:
        return False
    tags = champion_tags(home, plan.model)[1]
    return tags.get(_DATASET_TAG, plan.fingerprint) != plan.fingerprint


def _check_champion(home: Home, plan: RunPlan, recipe: Recipe, expected: DatasetVersion) -> str:
    """Compare inputs with the embedded store's champion; returns how the columns of a table differ, in words.

    Nothing is compared if the champion's dataset is no longer in this home; the flow compares after the preparation.
    """
    if plan.settings.tracking.uri is not None:
        return ""
    number, tags = champion_tags(home, plan.model)
    if number is None or _DATASET_TAG not in tags:
        return ""
    check_same_transform(plan.model, number, tags.get(_TRANSFORM_TAG, ""), plan.recipe.transform)
    fingerprint = tags[_DATASET_TAG]
    try:
        dataset = read_manifest(home.dataset(plan.recipe.name, fingerprint), fingerprint)
    except DataError:
        return ""  # removed by `evergreen gc`, or of another recipe: the run's preflight checks the version itself
    check_columns_sound(plan, number, dataset, declared_columns(recipe))
    if expected.transform and not expected.parts["train"]:
        return ""  # the columns that the function makes are known only after preparation
    return check_comparable(plan.model, number, (dataset.shape, dataset.problem, dataset.table), expected)
