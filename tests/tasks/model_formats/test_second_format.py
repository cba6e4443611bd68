"""A trainer with two formats: the settings choose, and each registered model is loaded by its own."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from boosted_tables import RegisteredTrees, bundled, registered_trees

from tasks.model_formats.base import check_same, format_name, format_of
from tasks.registry.aliases import load_version
from tasks.registry.safe_loading import check_files
from tasks.trackers.mlflow_run import connect
from training.data.dataset import open_columns
from training.errors import DataError, SettingError
from training.seams import FORMATS, FormatPart
from training.settings.overrides import resolve
from training.settings.schema import Settings
from training.storage.paths import Home
from training.trainers.xgboost import inspection
from training.trainers.xgboost.settings import XGBoostSettings

JSON = {"tracking": {"model_format": "json_trees"}}


@pytest.fixture(scope="module")
def formats() -> pytest.MonkeyPatch:
    """What adding a format changes elsewhere: a line in training/seams.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FORMATS, "json_trees", FormatPart("json_trees", ("xgboost",)))
        yield patch


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, formats: pytest.MonkeyPatch) -> RegisteredTrees:
    """One training as version 1 in the first format, and as version 2 in the second."""
    home = Home(tmp_path_factory.mktemp("home"))
    trees = registered_trees(home, bundled(home, "regression"), rounds=3)
    return registered_trees(home, trees.version, JSON, rounds=3)


def test_the_settings_choose_among_the_formats_of_the_trainer(formats: pytest.MonkeyPatch) -> None:
    boosted = Settings(training=XGBoostSettings())
    assert format_name(boosted) == "xgboost_ubj"
    assert Path("model.json") == format_of(resolve(boosted, JSON)).MODEL_FILE
    with pytest.raises(
        SettingError, match=r"of trainer torch are registered as .*torch_export.*, not as json_trees"
    ):
        resolve(Settings(), JSON)


def test_each_version_is_loaded_by_its_own_format(both: RegisteredTrees) -> None:
    connect(None, both.home)
    inputs = np.array(open_columns(both.version, "test").inputs)
    trained = inspection.predict_with(inspection.booster_of(both.trained))
    for number in ("1", "2"):
        check_same(trained, load_version(both.home, "boosted", number).predict, inputs)
    files = sorted(path.name for path in both.home.mlflow_artifacts.rglob("model.[ju]*"))
    assert files == ["model.json", "model.ubj"]


@pytest.mark.parametrize("said", ["xgboost_ubj", "torch_export", "unknown", None, 1])
def test_a_model_that_names_another_format_is_refused(both: RegisteredTrees, said: object) -> None:
    """Without a name, it is taken for a model of the first format with its flavor."""
    (file,) = (path.parent / "MLmodel" for path in both.home.mlflow_artifacts.rglob("model.json"))
    text = file.read_text()
    described = yaml.safe_load(text)
    described["metadata"]["format"] = said
    try:
        file.write_text(yaml.safe_dump(described))
        with pytest.raises(DataError, match="is not a model that Evergreen registered"):
            check_files(file.parent, "model boosted version 2", {})
    finally:
        file.write_text(text)
