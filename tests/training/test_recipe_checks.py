"""A wrong type in a recipe is an error that names the field, the rule and the remedy."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evergreen import (
    Accelerate,
    Augmentation,
    BundledTable,
    Cifar10,
    Digits,
    IdxFiles,
    ImageFolder,
    Keras,
    LightGBM,
    Lightning,
    ParquetImages,
    Recipe,
    Regression,
    Table,
    TensorFlow,
    Text,
    Torch,
    Transformers,
    XGBoost,
)
from training.data.sources import Source
from training.errors import SettingError
from training.recipe import load
from training.storage.given_paths import expanded

WRONG: Any = object()


def build_model(shape: object, outputs: int) -> None:
    """Stand for a network."""


def refused(**fields: Any) -> str:
    with pytest.raises(SettingError) as caught:
        Recipe(**{"name": "x", "source": Digits(), "build_model": build_model} | fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": 2024}, 'recipe: name=2024 must be text in quotes, such as name="scans"'),
        ({"source": "leaves"}, "source must be such as ImageFolder('leaves'), Table('leaves', target=...)"),
        ({"source": Path("leaves")}, "source must be such as ImageFolder('leaves')"),
        ({"source": Digits}, "source=Digits is a class; add parentheses: source=Digits(...)"),
        ({"problem": "regression"}, "problem must be such as Classification(), Regression()"),
        ({"problem": Regression}, "problem=Regression is a class; add parentheses"),
        ({"trainer": Torch, "build_model": None}, "trainer=Torch is a class; add parentheses"),
        ({"trainer": "torch", "build_model": None}, "trainer must be such as Torch(build_model)"),
        ({"settings": {"training": {}}}, "settings must be Settings(...), not {'training': {}}"),
        ({"augmentation": {"shift": 1}}, "augmentation must be Augmentation(shift=1)"),
        ({"metrics": ["f1"]}, "metrics must be a dict"),
        ({"build_model": 3}, "build_model must be a function, not 3"),
        ({"dataset": "train"}, "dataset must be a function"),
        ({"files": None}, "files must be a tuple of names"),
        ({"files": Path("width.json")}, "files must be a tuple of names"),
        ({"files": ("width.json")}, "a comma makes it a tuple: files=('width.json',)"),
        ({"source": Table(["a.csv"], target="y")}, "Table(path=...): expected one path"),  # type: ignore[arg-type]
        ({"source": ImageFolder(["a"])}, "ImageFolder(path=...): expected one path"),  # type: ignore[arg-type]
        ({"source": Text("a", tokenizer=WRONG)}, "Text(tokenizer=...): expected one path"),
        ({"source": Text("a", target=["y"])}, "Text(target=...): expected one text"),  # type: ignore[arg-type]
        ({"source": Table("a", target=["y"])}, "Table(target=...): expected one text"),  # type: ignore[arg-type]
        ({"source": Table("a", target=-1)}, 'expected one text in quotes, such as target="a", not -1'),  # type: ignore[arg-type]
        ({"source": Table("a", target="y", drop=[0])}, 'a list of names, such as drop=["a", "b"]'),  # type: ignore[list-item]
        ({"source": Table("a", target="y", group=1)}, "Table(group=...): expected one text"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_wrong_type_is_refused(fields: dict[str, Any], said: str) -> None:
    assert said in refused(**fields)


@pytest.mark.parametrize(
    "source",
    [
        Digits(),
        IdxFiles("FashionMNIST", ("a", "b")),
        Cifar10(),
        ImageFolder("a", classes=("a", "b")),
        ImageFolder(Path("a"), target="age"),
        Table(Path("a"), target="y", drop=["b"], types={"c": "date"}, time="c"),
        Text("a", target=None, tokenizer=Path("b")),
        BundledTable("diabetes"),
        ParquetImages("a", image="b", label="c"),
    ],
)
def test_right_types_pass(source: Source) -> None:
    assert Recipe(name="x", source=source, build_model=build_model, files=["a", Path("b")]).source == source  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("shift", 0.5, "shift=0.5 must be a whole number of pixels, 0 or more"),
        ("shift", -1, "shift=-1 must be a whole number"),
        ("shift", True, "shift=True must be a whole number"),
        ("scale", 1.0, "scale=1.0 must be a share of the size, at least 0 and less than 1"),
        ("scale", -0.1, "scale=-0.1 must be a share"),
        ("scale", "0.1", "scale='0.1' must be a share"),
        ("flip", 0.5, "flip=0.5 must be True or False"),
        ("rotation", "10", "rotation='10' must be a number of degrees"),
        ("rotation", float("nan"), "rotation=nan must be a number of degrees"),
    ],
)
def test_an_impossible_augmentation_is_refused(field: str, value: Any, said: str) -> None:
    assert f"recipe x: augmentation: {said}" in refused(augmentation=Augmentation(**{field: value}))


@pytest.mark.parametrize("trainer", [XGBoost(), LightGBM()])
def test_an_augmentation_that_the_trainer_does_not_use_is_refused(trainer: Any) -> None:
    table = BundledTable("diabetes")
    message = refused(source=table, trainer=trainer, build_model=None, augmentation=Augmentation(flip=True))
    assert re.search(
        r"augmentation: trainer \w+ changes no rows while it trains; remove augmentation", message
    )


def test_a_folder_in_files_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        "from evergreen import Digits, Recipe\nrecipe = Recipe('mine', source=Digits(), files=('words',))\n"
    )
    with pytest.raises(SettingError, match="words, which is a folder; name each of its files"):
        load(str(recipe))


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.exit()",
        "raise SystemExit(0)",
        "import argparse\nargparse.ArgumentParser().parse_args()",
    ],
)
def test_a_recipe_that_ends_the_program_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr("sys.argv", ["evergreen", "retrain", "mine.py"])
    recipe = tmp_path / "mine.py"
    recipe.write_text(f"{code}\n")
    with pytest.raises(SettingError, match=r"mine.py: it calls sys.exit\(\) or parses the command line"):
        load(str(recipe))


def test_a_recipe_is_loaded_by_a_path_as_well(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.py"
    recipe.write_text("from evergreen import Digits, Recipe\nrecipe = Recipe('mine', source=Digits())\n")
    assert load(recipe)[0].name == "mine"
    with pytest.raises(
        SettingError, match=r"recipe 5: expected the name of a recipe, or a path ending in \.py"
    ):
        load(5)  # type: ignore[arg-type]


def test_a_path_of_another_type_is_refused() -> None:
    with pytest.raises(SettingError, match=r"input: expected one path, as text or pathlib.Path, not \['a'\]"):
        expanded(["a"], "input")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Torch("net"), "Torch: build_model must be a function, not 'net'; write Torch(build_model)"),  # type: ignore[arg-type]
        (lambda: Lightning("net"), "Lightning: build_module must be a function"),  # type: ignore[arg-type]
        (lambda: Lightning(build_model, "data"), "Lightning: build_datamodule must be a function"),  # type: ignore[arg-type]
        (lambda: Accelerate("train"), "Accelerate: train must be a function"),  # type: ignore[arg-type]
        (lambda: Keras(None), "Keras: build_model must be a function, not None"),  # type: ignore[arg-type]
        (lambda: Transformers("bert"), "Transformers: build_model must be a function"),  # type: ignore[arg-type]
        (lambda: TensorFlow("net"), "TensorFlow: build_model must be a function"),  # type: ignore[arg-type]
    ],
)
def test_a_trainer_refuses_what_is_no_function(make: Callable[[], object], said: str) -> None:
    with pytest.raises(SettingError) as raised:
        make()
    assert said in str(raised.value)


def test_settings_of_another_trainer_name_the_setting_and_the_remedy(tmp_path: Path) -> None:
    recipe = tmp_path / "own.py"
    recipe.write_text(
        "from evergreen import *\n"
        "recipe = Recipe('own', source=Table('a.csv', target='y'), trainer=XGBoost(),\n"
        "                settings=Settings(training={'rounds': 3}, data={'pathh': 'a'}))\n"
    )
    with pytest.raises(SettingError) as raised:
        load(recipe)
    said = str(raised.value)
    assert f"recipe {recipe}: " in said
    assert "data.pathh: no such setting, got 'a'" in said
    assert (
        "training.rounds: no such setting of trainer torch; a recipe's trainer takes its settings as arguments"
        in said
    )
