"""Recipes that name neither a trainer nor a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evergreen import (
    Denoising,
    Digits,
    ImageFolder,
    LanguageModel,
    Recipe,
    Settings,
    Table,
    Text,
    TrainingSettings,
)
from training import default_trainers
from training.default_trainers import image_network, text_network
from training.errors import SettingError
from training.recipe import load
from training.settings.overrides import describe
from training.text_shape import TextShape


@pytest.mark.parametrize(
    ("source", "trainer", "build"),
    [
        (Digits(), "torch", image_network),
        (ImageFolder("pictures"), "torch", image_network),
        (Text("films.csv", text="text", target="label"), "torch", text_network),
        (Table("diamonds.csv", target="price"), "xgboost", None),
    ],
)
def test_the_kind_of_the_source_decides(source: Any, trainer: str, build: Callable[..., Any] | None) -> None:
    recipe = Recipe("x", source=source)
    assert (recipe.settings.trainer, recipe.build_model) == (trainer, build)
    assert recipe.chosen.startswith(f"{trainer}")


def test_a_trainer_that_the_recipe_names_is_not_chosen() -> None:
    assert Recipe("x", source=Digits(), build_model=image_network).chosen == ""


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 64, 64), (1, 96, 80), (3, 128, 128)])
def test_the_network_for_images_takes_every_size(shape: tuple[int, int, int]) -> None:
    network = image_network(shape, 5).eval()
    assert network(torch.zeros(2, *shape)).shape == (2, 5)


def test_the_network_for_text_ignores_padding() -> None:
    network = text_network(TextShape(6, vocabulary=50, padding=0), 3).eval()
    short, padded = network(torch.tensor([[4, 5]])), network(torch.tensor([[4, 5, 0, 0, 0, 0]]))
    assert short.shape == (1, 3)
    assert torch.allclose(short, padded)


def test_the_code_of_the_chosen_network_is_part_of_the_recipes_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "only.py"
    recipe.write_text("from evergreen import Digits, Recipe\nrecipe = Recipe('only', source=Digits())\n")
    _, before = load(str(recipe))
    assert {"default_trainers.py", "rt_polarity_mean.py", "cifar10_resnet.py"} <= {
        Path(f).name for f in before.files
    }
    changed = tmp_path / "elsewhere" / "default_trainers.py"
    changed.parent.mkdir()
    changed.write_text(
        Path(default_trainers.__file__).read_text().replace("_SMALL_PX = 64", "_SMALL_PX = 32")
    )
    monkeypatch.setattr(default_trainers, "__file__", str(changed))
    monkeypatch.setattr("training.recipe._loaded", {})
    assert load(str(recipe))[1].digest != before.digest


def test_a_language_model_gets_a_network_whose_losses_are_those_of_its_tokens() -> None:
    recipe = Recipe("x", source=Text("films.csv", text="text"), problem=LanguageModel())
    assert recipe.settings.trainer == "transformers"
    assert recipe.chosen.startswith("transformers with a small GPT-2")
    assert describe(recipe.settings)["training.learning_rate"] == 2e-3
    pytest.importorskip("transformers", reason="install the extras by: make setup EXTRAS=all")
    assert recipe.build_model is not None
    network = recipe.build_model(TextShape(6, vocabulary=50, padding=0), 50).eval()
    ((loss, tokens),) = network(torch.tensor([[4, 5, 6, 0, 0, 0]])).tolist()
    assert tokens == 2
    assert loss > 0


def test_the_libraries_of_a_language_model_s_network_are_those_of_its_recipe_alone(tmp_path: Path) -> None:
    texts, images = tmp_path / "texts.py", tmp_path / "images.py"
    texts.write_text(
        "from evergreen import LanguageModel, Recipe, Text\n"
        "recipe = Recipe('texts', source=Text('films.csv', text='text'), problem=LanguageModel())\n"
    )
    images.write_text("from evergreen import Digits, Recipe\nrecipe = Recipe('images', source=Digits())\n")
    has = {path: "rt_polarity_gpt2.py" in str(load(str(path))[1].files) for path in (texts, images)}
    assert has == {texts: True, images: False}


def test_a_problem_without_a_default_model_says_so() -> None:
    with pytest.raises(SettingError, match=r"Denoising\(\) has no default model: give build_model"):
        Recipe("x", source=Digits(), problem=Denoising())


def test_settings_of_a_network_are_refused_for_a_table() -> None:
    with pytest.raises(SettingError, match=r"must name their trainer; for a table: trainer=XGBoost"):
        Recipe("x", source=Table("t.csv", target="y"), settings=Settings(training=TrainingSettings(epochs=3)))
