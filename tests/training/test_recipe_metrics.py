"""Metrics of TorchMetrics in a recipe: what is refused before anything trains."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import tiny_settings, write_recipe

from evergreen import Digits, Recipe, Regression, XGBoost
from flows.preview import preview
from training.errors import SettingError
from training.recipe_metrics import RecipeMetrics
from training.records import DatasetVersion
from training.storage.paths import Home


def build_model(shape: object, outputs: int) -> Any:
    raise AssertionError


def build_metric(outputs: int) -> Any:
    raise AssertionError


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("accuracy", "Evergreen itself has a metric of the name 'accuracy'"),
        ("macro_f1", "Evergreen itself has a metric of the name 'macro_f1'"),
        ("rmse", "Evergreen itself has a metric of the name 'rmse'"),
        ("loss", "Evergreen itself has a metric of the name 'loss'"),
        ("champion_f1", "Evergreen itself has a metric of the name 'champion_f1'"),
        ("f1/macro", "the name 'f1/macro' needs a letter, then"),
        ("", "the name '' needs a letter"),
    ],
)
def test_a_name_that_evergreen_uses_is_refused(name: str, message: str) -> None:
    with pytest.raises(SettingError, match=f"recipe x: metrics: {message}"):
        Recipe(name="x", source=Digits(), build_model=build_model, metrics={name: build_metric})


def test_names_of_another_problem_s_scores_are_free() -> None:
    recipe = Recipe(
        name="x",
        source=Digits(),
        problem=Regression(),
        build_model=build_model,
        metrics={"macro_f1": build_metric},
    )
    assert list(recipe.metrics) == ["macro_f1"]


def test_a_trainer_of_trees_computes_no_metrics_of_a_recipe() -> None:
    with pytest.raises(SettingError, match="recipe x: metrics: trainer xgboost does not compute metrics"):
        Recipe(name="x", source=Digits(), trainer=XGBoost(), metrics={"f1": build_metric})


def test_plan_says_how_to_install_the_library(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Path(write_recipe(tmp_path))
    recipe.write_text(
        recipe.read_text().replace("build_model=build_model", "build_model=build_model, metrics={'f1': int}")
    )
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(SettingError, match=r"TorchMetrics is not installed; .*make setup EXTRAS=all"):
        preview(str(recipe), {"scaling": {"num_workers": 0}}, home)


def test_a_recipe_without_metrics_needs_no_library(
    small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    assert RecipeMetrics("x", {}, small_version, "cpu").values() == {}
    assert tiny_settings().training.COMPUTES_METRICS


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda _: 1 / 0, "the function of f1 raises ZeroDivisionError"),
        (lambda outputs: outputs, "the function of f1 returns a int; it must return a torchmetrics.Metric"),
    ],
)
def test_a_function_that_gives_no_metric_is_refused(
    build: Callable[[int], Any], message: str, small_version: DatasetVersion
) -> None:
    pytest.importorskip("torchmetrics", reason="install the extras by: make setup EXTRAS=all")
    with pytest.raises(SettingError, match=message):
        RecipeMetrics("x", {"f1": build}, small_version, "cpu")
