"""A recipe names its trainer and problem once, in the words of the public API."""

import pytest

from evergreen import Classification, Digits, Recipe, Regression, Settings, Torch, TrainingSettings, XGBoost
from training.errors import SettingError
from training.trainers.xgboost.settings import XGBoostSettings


def build_model(shape: object, outputs: int) -> None:
    return None


def test_a_model_alone_is_trained_by_the_loop() -> None:
    recipe = Recipe("digits", "", Digits(), build_model=build_model)
    assert recipe.trainer == Torch(build_model)
    assert recipe.problem == Classification()
    assert recipe.settings.trainer == "torch"


def test_the_loop_by_name() -> None:
    recipe = Recipe(name="x", source=Digits(), trainer=Torch(build_model), problem=Regression())
    assert recipe.build_model is build_model
    assert recipe.problem.name == "regression"


def test_xgboost_s_settings_are_the_section_training_of_the_recipe() -> None:
    recipe = Recipe(
        name="x", source=Digits(), trainer=XGBoost(max_depth=4, rounds=30), settings=Settings(seed=3)
    )
    assert recipe.settings.training == XGBoostSettings(max_depth=4, rounds=30)
    assert recipe.settings.seed == 3
    assert recipe.build_model is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": Digits()}, "recipe x: give either trainer"),
        (
            {"source": Digits(), "build_model": build_model, "trainer": XGBoost()},
            "recipe x: give either trainer",
        ),
        ({"build_model": build_model}, "recipe x: it names no source"),
    ],
)
def test_a_recipe_without_what_it_needs(given: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Recipe(name="x", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_dept": 3}, "XGBoost: no setting max_dept; did you mean max_depth?"),
        ({"rounds": 0}, "XGBoost: rounds: Input should be greater than 0, got 0"),
        ({"epochs": 3}, "XGBoost: no setting epochs; "),
    ],
)
def test_settings_that_xgboost_does_not_have(settings: dict[str, int], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        XGBoost(**settings)
    assert str(caught.value).startswith(message)


def test_settings_of_the_loop_beside_xgboost_are_refused() -> None:
    """They would be silently without effect."""
    with pytest.raises(SettingError, match="training"):
        Recipe(
            name="x",
            source=Digits(),
            trainer=XGBoost(),
            settings=Settings(training=TrainingSettings(epochs=3)),
        )
