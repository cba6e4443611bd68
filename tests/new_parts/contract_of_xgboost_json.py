"""The contract of a model format, for `xgboost_json.py`. A test file of the product."""

import shutil
from pathlib import Path

import pytest
import yaml
from boosted_tables import boosted_job
from format_contract import FormatContract, Stored
from raw_predictions import every_kind
from tasks.model_formats.xgboost_json import find_foreign, log_model

from tasks.model_formats.base import format_of, metadata_of
from training.recipe import load
from training.records import DatasetVersion, TrainedModel
from training.settings.overrides import resolve
from training.settings.schema import Settings
from training.storage.files import temporary_folder
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.xgboost.settings import XGBoostSettings


class TestJson(FormatContract):
    name = "xgboost_json"
    trainer = "xgboost"

    def train(self, home: Home) -> tuple[str, DatasetVersion, TrainedModel]:
        version = every_kind(home, "regression")
        job = boosted_job(home, version, training={"rounds": 8})
        return job.recipe.path, version, launch(job)

    def log_before(self, run_id: str, stored: Stored) -> str:
        """No release before had the format: as this release logs it."""
        recipe, metadata = load(stored.recipe)[0], metadata_of(stored.version, self.name)
        return log_model(run_id, recipe, stored.version, stored.trained, stored.inputs[:4], metadata)

    def check_ties(self, stored: Stored) -> None:
        """Trees share no weights: a file without trees is refused."""
        described = yaml.safe_load((stored.files / "MLmodel").read_text())
        with temporary_folder("ties") as folder:
            shutil.copytree(stored.files, folder / "model")
            (folder / "model" / "model.ubj").write_bytes(b"{}")
            wrong = find_foreign(folder / "model", described["flavors"], described["metadata"])
        assert wrong is not None
        assert wrong.startswith("model.ubj: ")


def test_the_settings_choose_the_format() -> None:
    chosen = resolve(Settings(training=XGBoostSettings()), {"tracking": {"model_format": "xgboost_json"}})
    assert Path("model.json") == format_of(chosen).MODEL_FILE
    with pytest.raises(
        Exception, match="of trainer torch are registered as torch_export, not as xgboost_json"
    ):
        resolve(Settings(), {"tracking": {"model_format": "xgboost_json"}})
