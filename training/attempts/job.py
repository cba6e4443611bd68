"""What a training process is told: one JSON record that crosses from the driver to the workers."""

from pathlib import Path
from typing import Literal

from training.recipe import RecipeRef
from training.records import DatasetVersion, Record
from training.settings.schema import Settings
from training.storage.paths import RunPaths


class TrainingJob(Record):
    """One training: its identity, where it keeps its state, how rows are fed, and which driver's attempt this is."""

    run_key: str
    root: str
    recipe: RecipeRef
    settings: Settings
    dataset: DatasetVersion
    feed: Literal["memory", "stream", "loader"]
    use_gpu: bool
    attempt: int = 0
    driver: str = ""

    @property
    def paths(self) -> RunPaths:
        """Paths of the run."""
        return RunPaths(Path(self.root))
