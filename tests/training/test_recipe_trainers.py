"""A recipe names its trainer and problem once, in the words of the public API."""

from pathlib import Path
from typing import Any

import pytest

from evergreen import (
    Classification,
    Digits,
    Keras,
    Lightning,
    Recipe,
    Regression,
    Settings,
    Table,
    Text,
    Torch,
    TrainingSettings,
    Transformers,
    XGBoost,
)
from training.data.sources import Source
from training.errors import SettingError
from training.recipe import load
from training.records import DatasetVersion, Split
from training.settings.overrides import parse_assignments, resolve
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


def test_the_strategy_of_the_loop() -> None:
    recipe = Recipe(name="x", source=Digits(), trainer=Torch(build_model, strategy="fsdp"))
    assert recipe.settings.training == TrainingSettings(strategy="fsdp")
    assert (
        resolve(recipe.settings, parse_assignments(["training.strategy=ddp"])).training == TrainingSettings()
    )
    kept = Settings(training=TrainingSettings(strategy="fsdp"))
    assert Recipe(name="x", source=Digits(), trainer=Torch(build_model), settings=kept).settings == kept


def test_the_settings_of_the_loop_are_arguments() -> None:
    recipe = Recipe(
        name="x", source=Digits(), trainer=Torch(build_model, epochs=3, init_from="net.safetensors")
    )
    assert recipe.settings.training == TrainingSettings(epochs=3, init_from="net.safetensors")
    given = Settings(training=TrainingSettings(epochs=3, learning_rate=0.1), seed=4)
    both = Recipe(
        name="x", source=Digits(), trainer=Torch(build_model, epochs=3, optimizer="sgd"), settings=given
    )
    assert both.settings.training == TrainingSettings(epochs=3, learning_rate=0.1, optimizer="sgd")
    assert both.settings.seed == 4
    with pytest.raises(SettingError, match=r"settings: training\.epochs has another value in Torch\(...\)"):
        Recipe(name="x", source=Digits(), trainer=Torch(build_model, epochs=5), settings=given)
    with pytest.raises(SettingError, match=r"Torch: no setting epoch; did you mean epochs\?"):
        Torch(build_model, epoch=3)  # type: ignore[call-arg]
    with pytest.raises(SettingError, match=r"Torch: epochs: .*greater than 0"):
        Torch(build_model, epochs=0)


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


@pytest.mark.parametrize("own", [None, "bert"])
def test_the_tokenizer_of_transformers_is_that_of_the_source(own: str | None) -> None:
    trainer = Transformers(build_model, tokenizer=Path("bert"))
    recipe = Recipe(name="x", source=Text("rows.csv", text="review", tokenizer=own), trainer=trainer)
    assert recipe.source == Text("rows.csv", text="review", tokenizer=Path("bert"))
    plain = Text("rows.csv", tokenizer=own)
    assert Recipe(name="x", source=plain, trainer=Transformers(build_model)).source == plain


def test_a_tokenizer_beside_the_recipe_is_found_as_that_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "films.py").write_text(
        "from evergreen import Recipe, Text, Transformers\n"
        "trainer = Transformers(print, tokenizer='tokenizer.json')\n"
        "recipe = Recipe('films', source=Text('rows.csv'), trainer=trainer)\n"
    )
    source = load(str(tmp_path / "films.py"))[0].source
    assert source == Text(tmp_path / "rows.csv", tokenizer=tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("source", "tokenizer", "message"),
    [
        (
            Text("rows.csv", tokenizer="gpt2"),
            "bert",
            "its source names the tokenizer 'gpt2', its trainer 'bert'",
        ),
        (Digits(), "bert", "its trainer names a tokenizer, and its source is no Text"),
        (Text("rows.csv"), object(), "Transformers: tokenizer is of type object; give the path"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(source: Source, tokenizer: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Recipe(name="x", source=source, trainer=Transformers(build_model, tokenizer=tokenizer))


def own_dataset(version: DatasetVersion, split: Split) -> Any:
    raise AssertionError


@pytest.mark.parametrize(
    ("trainer", "source"),
    [
        (XGBoost(), Digits()),
        (Keras(build_model), Digits()),
        (Lightning(build_model), Digits()),
        (None, Table("rows.csv", target="label")),  # the default trainer of a table
    ],
)
def test_a_dataset_that_the_trainer_does_not_read_is_refused(trainer: Any, source: Source) -> None:
    with pytest.raises(
        SettingError, match=r"recipe x: dataset: trainer \w+ does not read a Dataset of your own"
    ):
        Recipe(name="x", source=source, trainer=trainer, dataset=own_dataset)


def test_a_dataset_that_the_feed_does_not_read_is_a_warning() -> None:
    recipe = Recipe(name="x", source=Digits(), trainer=Torch(build_model), dataset=own_dataset)
    loader = resolve(recipe.settings, parse_assignments(["data.feed=loader"]))
    assert recipe.unused_dataset(loader) == ""
    assert recipe.unused_dataset(recipe.settings).startswith(
        "recipe x: its dataset has no effect with data.feed=memory"
    )
    assert Recipe(name="x", source=Digits(), build_model=build_model).unused_dataset(recipe.settings) == ""
