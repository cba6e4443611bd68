"""The contract of a trainer, for `linear.py`. A test file of the product."""

import pytest
from boosted_tables import bundled
from small_runs import job_for
from trainer_contract import TrainerContract

from training.attempts.job import TrainingJob
from training.recipe import load
from training.records import DatasetVersion
from training.settings.overrides import resolve
from training.storage.paths import Home

RECIPE = """
from evergreen import BundledTable, Recipe, Regression
from training.trainers.linear import Linear

recipe = Recipe(
    "linear", "for a test", BundledTable("diabetes"), problem=Regression(), trainer=Linear(epochs=4)
)
"""
IN_PROCESS = {
    "scaling": {"num_workers": 0, "use_gpu": "no"},
    "tracking": {"system_metrics": False},
    "checkpoint": {"every_steps": 2},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    return bundled(Home(tmp_path_factory.mktemp("table")), "regression")


class TestLinear(TrainerContract):
    @pytest.fixture(autouse=True)
    def _table(self, table: DatasetVersion) -> None:
        self.version = table

    def job(self, home: Home) -> TrainingJob:
        recipe = home.root / "linear.py"
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text(RECIPE)
        settings = resolve(load(str(recipe))[0].settings, IN_PROCESS)
        return job_for(home, self.version, settings, recipe=str(recipe))
