"""In: raw rows. Out: an immutable, validated dataset version, computed with Ray Data.

Fails with DataError that names the rows which break a rule; then nothing is left under the version's name.
"""

import logging
import shutil
from functools import partial
from pathlib import Path

from tasks.step import step
from training.data.preprocessing.preparation import check_declared, make_preprocessed_version
from training.data.sources.wording import counted
from training.data.versions import make_version
from training.plan import RunPlan
from training.ray_cluster.capacity import others_see_this_disk
from training.recipe_function import recipe_function
from training.records import DatasetVersion, RawShard
from training.storage.paths import Home
from training.storage.record_files import set_aside

log = logging.getLogger("evergreen.transform")


@step("transform", retries=2)
def transform(plan: RunPlan, raw: list[RawShard], raw_folder: str) -> DatasetVersion:
    """Decode, validate, split and commit the rows; then delete the raw rows, which are not needed any more."""
    home = Home(Path(plan.home))
    folder = home.dataset(plan.recipe.name, plan.fingerprint)
    set_damaged_aside(folder)
    make = partial(
        make_version,
        plan.recipe.name,
        plan.fingerprint,
        plan.files,
        raw,
        plan.settings.data,
        with_ray=plan.settings.scaling.num_workers > 0 and others_see_this_disk(plan.settings),
        listing=home.refused_rows(plan.recipe.name, plan.fingerprint),
        problem=plan.recipe.problem,
        function=recipe_function(plan.recipe, plan.paths.recipe),
    )
    steps = plan.recipe.preprocessors
    if steps and not plan.recipe.transform:  # otherwise the columns are known after the function ran
        check_declared(steps, plan.files)
    version = make_preprocessed_version(steps, plan.settings.data, folder, make) if steps else make(folder)
    shutil.rmtree(raw_folder, ignore_errors=True)
    log.info(
        "dataset %s: %s train and %s %s",
        version.fingerprint[:12],
        f"{version.rows('train'):,}",
        counted(version.rows("test"), "test image" if version.has_images else "test row"),
        _content(version),
    )
    return version


def _content(version: DatasetVersion) -> str:
    """The end of a log line: the shape of the rows, and the classes if there are any."""
    if version.table is None or version.has_images:
        shape = "of {}x{}x{}".format(*version.shape)
    elif version.text is not None:
        shape = f"of {counted(version.text.length, 'token')} of {version.text.vocabulary:,}"
    else:
        shape = f"of {counted(len(version.table.columns), 'feature')}"
    return f"{shape} in {counted(len(version.classes), 'class', 'classes')}" if version.classes else shape


def set_damaged_aside(folder: Path) -> None:
    """Rename the folder of an incomplete dataset version, so that the version can be created under its name."""
    if folder.exists():
        set_aside(folder, "it is an incomplete dataset; the dataset is prepared again")
