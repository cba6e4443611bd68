"""`evergreen plan` refuses before preparation what the run would refuse, with the same messages."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs
from PIL import Image
from small_runs import LINEAR

import flows
from flows import preview as module
from flows.preview import preview
from tasks.checks import plan_checks
from tasks.trackers.mlflow_run import connect
from training.errors import DataError, SettingError, TrainingError
from training.storage.paths import Home

RECIPE = """
from training.recipe import Recipe
from training.data.sources.folder import ImageFolder


def build_model(shape, classes):
    from torch import nn

    return {model}


recipe = Recipe(name="pets", summary="pets", source=ImageFolder("{images}"), build_model=build_model)
"""


def grey(count: int, side: int = 6) -> Any:
    return np.random.default_rng(0).integers(0, 256, (count, side, side)).astype(np.uint8)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Twenty grey 6x6 images of each of two classes in both splits."""
    pixels = iter(grey(80))
    for split in ("train", "test"):
        for pet in ("cat", "dog"):
            folder = tmp_path / "images" / split / pet
            folder.mkdir(parents=True)
            for number in range(20):
                Image.fromarray(next(pixels)).save(folder / f"{number}.png")
    return tmp_path / "images"


def plan(home: Home, tmp_path: Path, images: Path, model: str = LINEAR, **data: Any) -> module.Preview:
    recipe = tmp_path / "pets.py"
    recipe.write_text(RECIPE.format(images=images, model=model))
    return preview(str(recipe), {"data": data, "scaling": {"num_workers": 1}}, home)


def test_good_data_pass(home: Home, tmp_path: Path, images: Path) -> None:
    assert plan(home, tmp_path, images).first


def test_mixed_sizes_name_the_setting(home: Home, tmp_path: Path, images: Path) -> None:
    Image.fromarray(grey(1, side=5)[0]).save(images / "train/dog/7.png")
    with pytest.raises(DataError, match=r"dog/7\.png: is 5x5 .*data\.image_size resizes all images"):
        plan(home, tmp_path, images)
    assert plan(home, tmp_path, images, image_size=8)


@pytest.mark.parametrize("target", ["test/dog/copy.png", "train/cat/copy.png"], ids=["leak", "two labels"])
def test_copies_are_named(home: Home, tmp_path: Path, images: Path, target: str) -> None:
    (images / target).write_bytes((images / "train/dog/3.png").read_bytes())
    with pytest.raises(DataError, match="1 image file is in more than one split or class") as caught:
        plan(home, tmp_path, images)
    assert str(images / target) in str(caught.value)
    assert plan(home, tmp_path, images, duplicates="drop")


def test_data_that_were_refused_are_refused_again(home: Home, tmp_path: Path, images: Path) -> None:
    made = plan(home, tmp_path, images)
    listing = home.refused_rows(made.recipe, made.dataset_fingerprint)
    listing.parent.mkdir(parents=True)
    listing.write_text("row and reason")
    with pytest.raises(DataError, match="these data were refused before") as caught:
        plan(home, tmp_path, images)
    assert str(listing) in str(caught.value)


def test_a_model_for_colour_images_is_refused_on_grey_ones(home: Home, tmp_path: Path, images: Path) -> None:
    model = "nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))"
    with pytest.raises(TrainingError, match=r"its model refuses images of \(1, 6, 6\).*data\.channels"):
        plan(home, tmp_path, images, model)
    assert plan(home, tmp_path, images, model, channels=3)


@pytest.mark.extended
def test_the_recipe_of_the_readme_takes_grey_pictures(home: Home, tmp_path: Path, images: Path) -> None:
    readme = (Path(flows.__file__).parents[1] / "README.md").read_text()
    (recipe,) = (code for code in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if '"leaves"' in code)
    (tmp_path / "leaves.py").write_text(recipe)
    images.rename(tmp_path / "leaves")
    made = preview(str(tmp_path / "leaves.py"), {}, home)
    assert (made.recipe, made.first) == ("leaves", True)


def test_a_champion_of_other_inputs_is_found_for_a_built_in_recipe(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    larger = small_runs.prepared(home, data={"image_size": 16})
    monkeypatch.setattr(
        plan_checks, "champion_tags", lambda *_: ("1", {"evergreen.dataset": larger.fingerprint})
    )
    with pytest.raises(SettingError, match=r"champion digits version 1 .*16"):
        preview("digits", {}, home)
    assert preview("digits", {"data": {"image_size": 16}}, home).first


def test_settings_that_a_problem_lacks_are_refused_for_a_built_in_recipe(home: Home) -> None:
    with pytest.raises(SettingError, match=r"training\.label_smoothing: only classification"):
        preview("diabetes", {"training": {"label_smoothing": 0.1}}, home)


def test_an_augmentation_of_rows_that_are_no_images_is_refused(home: Home, tmp_path: Path) -> None:
    recipe = tmp_path / "sugar.py"
    recipe.write_text(
        "from evergreen import Augmentation, BundledTable, Recipe, Regression\n"
        "from training.recipes.digits import build_model\n"
        "recipe = Recipe('sugar', source=BundledTable('diabetes'), problem=Regression(), build_model=build_model,\n"
        "    augmentation=Augmentation(flip=True))\n"
    )
    with pytest.raises(
        SettingError, match="recipe sugar: augmentation changes images, and the source has none"
    ):
        preview(str(recipe), {}, home)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            "nn.Linear(undefined, classes)",
            r"build_model failed: NameError: .*'undefined'.*\(/.*pets\.py, line \d+\)",
        ),
        ("__import__('lightgbm_of_nobody')", "build_model failed: ModuleNotFoundError"),
        ("None", r"build_model returned a NoneType; it must return a torch\.nn\.Module"),
        ("nn.LSTM(6, classes)", "its model (refuses|returned a tuple; it must return one tensor)"),
        ("nn.Bilinear(6, 6, classes)", "its model failed: TypeError: .*input2"),
    ],
)
def test_a_mistake_in_build_model_is_the_recipe_s(
    home: Home, tmp_path: Path, images: Path, model: str, said: str
) -> None:
    with pytest.raises(TrainingError, match=rf"recipe pets: {said}"):
        plan(home, tmp_path, images, model)


def test_a_full_disk_is_not_a_mistake_of_the_recipe(home: Home, tmp_path: Path, images: Path) -> None:
    full = "(_ for _ in ()).throw(OSError(28, 'No space left on device'))"
    with pytest.raises(OSError, match="No space left"):
        plan(home, tmp_path, images, full)


def test_a_tracker_without_its_library_is_refused(
    home: Home, tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(home, tmp_path, images)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SettingError, match=r"tracking\.also: wandb needs the library wandb"):
        preview(str(tmp_path / "pets.py"), {"tracking": {"also": "wandb"}}, home)


def test_a_deleted_experiment_is_refused_with_the_command_that_restores_it(home: Home) -> None:
    client = connect(None, home)
    number = client.create_experiment("digits", artifact_location=home.mlflow_artifacts.as_uri())
    client.delete_experiment(number)
    command = rf"MLFLOW_TRACKING_URI={home.mlflow_uri} mlflow experiments restore --experiment-id {number}"
    with pytest.raises(SettingError, match=re.escape(command)):
        preview("digits", {}, home)
    assert preview("digits", {"tracking": {"experiment": "another"}}, home).first
    client.restore_experiment(number)
    assert preview("digits", {}, home).first


@pytest.mark.parametrize(
    ("trainer", "remedy"),
    [
        ("lightning", r"make setup EXTRAS=all"),
        ("accelerate", r"make setup EXTRAS=all"),
        ("keras", r"make setup EXTRAS=all"),
        ("tensorflow", "make setup EXTRAS=tensorflow"),
    ],
)
def test_a_trainer_s_missing_library_is_installed_as_the_trainer_says(
    trainer: str, remedy: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.checks.library_check.find_spec", lambda _: None)
    monkeypatch.setattr(f"training.trainers.{trainer}.trainer.find_spec", lambda _: None)
    with pytest.raises(SettingError, match=f"trainer {trainer}.*{remedy}"):
        preview(f"digits-{trainer}", {}, home)
