"""Apply the function `transform_rows` of a model's recipe to the rows that the model scores.

The function is not in the registered model: its code is in the copy of the recipe in the folder of the run that
registered the version.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.inference.inputs import Batch, Chunk, Unit
from tasks.inference.unlabelled_images import Images
from tasks.registry.safe_loading import TRANSFORM_TAG
from tasks.trackers.mlflow_run import RUN_KEY_TAG
from training.data.preparation.row_function import RowFunction, changed_images
from training.errors import SettingError
from training.plan import RunPlan
from training.recipe_function import recipe_function
from training.storage.paths import Home, RunPaths
from training.storage.record_files import find_record

_RUN_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ChangedImages:
    """Reads the inputs of a model that takes images, and applies `function` to the images."""

    images: Images
    function: RowFunction

    @property
    def unit(self) -> Unit:
        """The noun for rows in messages."""
        return self.images.unit

    @property
    def ray_from_rows(self) -> int:
        """Number of images from which scoring on Ray saves time."""
        return self.images.ray_from_rows

    @property
    def rows_at_once(self) -> int:
        """Largest number of images that the model scores at once."""
        return self.images.rows_at_once

    def find(self, path: Path) -> list[Chunk]:
        """See :func:`tasks.inference.unlabelled_images.find_chunks`."""
        return self.images.find(path)

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        """Read a chunk as batches of changed images."""
        for batch in self.images.read(chunk):
            good = np.flatnonzero(batch["error"] == "")
            inputs = np.array(batch["inputs"])
            if len(good):
                inputs[good] = changed_images(self.function, inputs[good], str(batch["where"][good[0]]))
            yield batch | {"inputs": inputs}


def function_of(home: Home, tags: Mapping[str, str], name: str) -> RowFunction | None:
    """The function `transform_rows` of the recipe of the version with these tags; None if the recipe had no function.

    Raises :class:`SettingError`, with `name` as the version's name, when this home has no copy of the recipe.
    """
    digest = tags.get(TRANSFORM_TAG, "")
    if not digest:
        return None
    key = tags.get(RUN_KEY_TAG, "")
    folders = list((home.root / "runs").glob(f"*/{key[:16]}")) if _RUN_KEY.fullmatch(key) else []
    for run in map(RunPaths, folders):
        plan = find_record(run.ingredients, RunPlan, run.root.name)
        if plan is not None and plan.recipe.transform == digest and run.recipe.is_dir():
            return recipe_function(plan.recipe, run.recipe, any_version=True)
    raise SettingError(
        f"{name}: its recipe's function transform_rows changes the rows before the model takes them, and "
        f"{home.root} has no copy of the recipe of run {key[:12] or '(unknown)'}. Predict in the home that trained the "
        "version (EVERGREEN_HOME), or apply the function to the rows and load the model with MLflow."
    )
