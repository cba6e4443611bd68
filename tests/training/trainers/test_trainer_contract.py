"""The PyTorch loop, on images and on a table, and XGBoost keep the contract of a trainer."""

import pytest
from boosted_tables import boosted_job, bundled
from small_runs import job_for, tiny_settings
from trainer_contract import TrainerContract

from training.attempts.job import TrainingJob
from training.recipe import load
from training.records import DatasetVersion
from training.settings.overrides import resolve
from training.storage.paths import Home

IN_PROCESS = {"scaling": {"num_workers": 0, "use_gpu": "no"}, "tracking": {"system_metrics": False}}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    return bundled(Home(tmp_path_factory.mktemp("table")), "regression")


class TestTorchOnImages(TrainerContract):
    @pytest.fixture(autouse=True)
    def _images(self, small_version: DatasetVersion) -> None:
        self.version = small_version

    def job(self, home: Home) -> TrainingJob:
        training = {"epochs": 3, "global_batch_size": 40}
        return job_for(home, self.version, tiny_settings(training=training, checkpoint={"every_steps": 2}))


@pytest.mark.slow
class TestTorchWithAnObjectStore(TrainerContract):
    @pytest.fixture(autouse=True)
    def _images(self, small_version: DatasetVersion) -> None:
        self.version = small_version

    def job(self, home: Home) -> TrainingJob:
        own = {"training": {"epochs": 3, "global_batch_size": 40}, "checkpoint": {"every_steps": 2}}
        return job_for(home, self.version, tiny_settings(storage={"url": f"file://{home.root}-store"}, **own))


class TestTorchOnATable(TrainerContract):
    @pytest.fixture(autouse=True)
    def _table(self, table: DatasetVersion) -> None:
        self.version = table

    def job(self, home: Home) -> TrainingJob:
        own = {"training": {"epochs": 4}, "checkpoint": {"every_steps": 2}}
        return job_for(
            home, self.version, resolve(load("diabetes")[0].settings, IN_PROCESS, own), recipe="diabetes"
        )


class TestXGBoost(TrainerContract):
    @pytest.fixture(autouse=True)
    def _table(self, table: DatasetVersion) -> None:
        self.version = table

    def job(self, home: Home) -> TrainingJob:
        return boosted_job(home, self.version, checkpoint={"every_s": 0.01})


class TestLightGBM(TrainerContract):
    @pytest.fixture(autouse=True)
    def _table(self, table: DatasetVersion) -> None:
        self.version = table

    def job(self, home: Home) -> TrainingJob:
        sampled = {"bagging_fraction": 0.8, "feature_fraction": 0.7}
        return boosted_job(
            home, self.version, trainer="LightGBM", training=sampled, checkpoint={"every_s": 0.01}
        )


class TestXGBoostWithAnObjectStore(TrainerContract):
    @pytest.fixture(autouse=True)
    def _table(self, table: DatasetVersion) -> None:
        self.version = table

    def job(self, home: Home) -> TrainingJob:
        return boosted_job(
            home, self.version, checkpoint={"every_s": 0.01}, storage={"url": f"file://{home.root}-store"}
        )
