"""The training job: the JSON record that the driver sends to each worker."""

from pathlib import Path
from typing import Literal

from training.recipe_sources import RecipeRef
from training.records import DatasetVersion, Record
from training.settings.schema import Settings
from training.storage.paths import RunPaths


class TrainingJob(Record):
    """One attempt of a training: run key, run folder, recipe, settings, dataset, feed, attempt number and driver.

    `initial` is the digest of the weights in `paths.initial_weights`, from which the training starts; empty: new ones.
    """

    run_key: str
    root: str
    recipe: RecipeRef
    settings: Settings
    dataset: DatasetVersion
    feed: Literal["memory", "stream", "loader"]
    use_gpu: bool
    attempt: int = 0
    driver: str = ""
    initial: str = ""

    @property
    def paths(self) -> RunPaths:
        """Paths of the run."""
        return RunPaths(Path(self.root))
