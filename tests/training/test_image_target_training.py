"""Trainings on images with numbers: an interrupted one ends with the same bits, and so does any number of shards."""

from pathlib import Path
from typing import Any

import pytest
from crashes import SAVE_EACH_STEP, crashed, outcome, settings
from pictures_with_numbers import TARGET, write_folder
from small_runs import job_for, prepared

from evergreen import ImageFolder
from training.attempts.job import TrainingJob
from training.errors import SettingError, TrainingError
from training.recipe import load
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.network.modules import build_module

RECIPE = """
from torch import nn

from evergreen import Augmentation, ImageFolder, Recipe, Regression


def build_model(shape, outputs):
    convolution = nn.Conv2d(shape[0], 4, 3)
    return nn.Sequential(convolution, nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(), nn.Linear(4 * 36, outputs))


recipe = Recipe(
    name="ink",
    source=ImageFolder("scans", target="ink"),
    problem=Regression(),
    build_model=build_model,
    augmentation=Augmentation(shift=1, flip=True),
)
"""


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    root = write_folder(tmp_path_factory.mktemp("data") / "scans", 200)
    return prepared(
        Home(tmp_path_factory.mktemp("home")), ImageFolder(root, target=TARGET), "ink", problem="regression"
    )


def job_of(folder: Path, version: DatasetVersion, **sections: Any) -> TrainingJob:
    folder.mkdir(exist_ok=True)
    recipe = folder / "ink.py"
    recipe.write_text(RECIPE.replace("nn.Linear(4 * 36, outputs)", "nn.Linear(4 * 36, outputs)"))
    return job_for(Home(folder), version, settings(**SAVE_EACH_STEP, **sections), str(recipe))


def test_a_crash_changes_no_bit(tmp_path: Path, scans: DatasetVersion) -> None:
    undisturbed = job_of(tmp_path / "one", scans)
    job = job_of(tmp_path / "two", scans)
    crashed(job, 1)
    crashed(job, 5)
    assert outcome(job, launch(job)) == outcome(undisturbed, launch(undisturbed))


def test_augmentation_changes_the_weights(tmp_path: Path, scans: DatasetVersion) -> None:
    augmented, plain = (
        launch(job_of(tmp_path / str(augment), scans, training={"augment": augment}))
        for augment in (True, False)
    )
    assert augmented.weights_digest != plain.weights_digest


def test_numbers_have_no_labels_to_smooth(tmp_path: Path, scans: DatasetVersion) -> None:
    with pytest.raises(SettingError, match="only classification has labels to smooth"):
        launch(job_of(tmp_path / "home", scans, training={"label_smoothing": 0.1}))


def test_a_model_gives_one_number_for_each_image(tmp_path: Path, scans: DatasetVersion) -> None:
    job_of(tmp_path / "home", scans)
    recipe = tmp_path / "home" / "ink.py"
    recipe.write_text(recipe.read_text().replace("4 * 36, outputs", "4 * 36, 10"))
    with pytest.raises(TrainingError, match=r"shape \(2, 10\); a number needs \(2, 1\)"):
        build_module(load(str(recipe))[0], scans.shape, 1)
