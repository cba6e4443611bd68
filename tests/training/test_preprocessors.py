"""What a recipe may declare as preprocessors, and the errors of what it may not."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ray.data.preprocessors import (
    Chain,
    Concatenator,
    CountVectorizer,
    LabelEncoder,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
)

from evergreen import BundledTable, Digits, Recipe, Regression, XGBoost
from training import identity
from training.errors import SettingError
from training.preprocessors import declared_steps
from training.recipe_sources import RecipeRef
from training.settings.schema import DataSettings
from training.storage.paths import Home
from training.table_records import DeclaredStep


def test_a_chain_and_a_sequence_declare_the_same_steps() -> None:
    def steps() -> list[Any]:
        return [
            SimpleImputer(["a"], strategy="constant", fill_value=np.float64(1.5)),
            RobustScaler(["a"], quantile_range=(0.1, 0.9), output_columns=["b"]),
            OneHotEncoder(["c"], max_categories={"c": 3}),
        ]

    declared = declared_steps("r", steps())
    first, *rest = steps()
    assert declared_steps("r", Chain(first, Chain(*rest))) == declared
    assert list(map(str, declared)) == [
        "SimpleImputer(columns=['a'], strategy='constant', fill_value=1.5)",
        "RobustScaler(columns=['a'], output_columns=['b'], quantile_range=(0.1, 0.9))",
        "OneHotEncoder(columns=['c'], max_categories={'c': 3})",
    ]
    assert len({*declared, *declared}) == 3  # a reference to a recipe is hashed
    assert [DeclaredStep.model_validate_json(step.model_dump_json()) for step in declared] == list(declared)


def _fitted() -> Any:
    scaler = StandardScaler(["a"])
    scaler.stats_ = {"mean(a)": 0.0, "std(a)": 1.0}
    return scaler


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "unsupported": (
        lambda: Normalizer(["a"]),
        "Normalizer is not supported. Use SimpleImputer, StandardScaler, ",
    ),
    "of-the-target": (lambda: LabelEncoder("a"), "LabelEncoder is not supported"),
    "of-text": (lambda: CountVectorizer(["a"]), ".* or change rows by a function, transform_rows"),
    "no-preprocessor": (lambda: "scale", "'scale', which is no preprocessor of Ray Data, is not supported"),
    "fitted": (_fitted, "StandardScaler is fitted already. Give it unfitted: Evergreen fits it"),
    "text-for-a-list": (lambda: StandardScaler("carat"), "StandardScaler: columns must be a list"),
    "nothing": (lambda: StandardScaler([]), "StandardScaler: it names no column"),
    "twice": (lambda: MinMaxScaler(["a", "a"]), "MinMaxScaler: it names column 'a' twice"),
    "same-output": (
        lambda: MinMaxScaler(["a", "b"], output_columns=["c", "c"]),
        "two of its output_columns have the same name",
    ),
    "quantiles": (
        lambda: RobustScaler(["a"], quantile_range=(75, 25)),
        r"quantile_range=\(75, 25\) must be two",
    ),
    "most": (
        lambda: OneHotEncoder(["a"], max_categories={"b": 2}),
        "max_categories names 'b', which is not among its columns",
    ),
    "integers": (lambda: Concatenator(["a"], dtype=np.int32), "Concatenator: dtype=.* 32-bit floats"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_supported_is_an_error_of_the_recipe(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SettingError, match=rf"^recipe mine: preprocessors: .*{message}"):
        Recipe(
            "mine",
            source=BundledTable("diabetes"),
            problem=Regression(),
            trainer=XGBoost(),
            preprocessors=[make()],
        )


def test_images_have_no_columns_to_preprocess(home: Home) -> None:
    ref = RecipeRef(name="r", path="r.py", files=(), digest="", preprocessors=declared_steps("r", _scaler()))
    with pytest.raises(
        SettingError, match=r"preprocessors: .* is no table, and preprocessors change the columns of a table"
    ):
        identity.data_fingerprint(ref, Digits().fetch(home.sources), DataSettings())


def _scaler() -> StandardScaler:
    return StandardScaler(["bmi"])


def test_steps_and_the_validation_share_are_part_of_the_datas_identity(home: Home) -> None:
    """Steps are fitted without validation rows, so another share gives other statistics."""
    files = BundledTable("diabetes").fetch(home.sources)

    def found(given: Any, **data: Any) -> str:
        ref = RecipeRef(
            name="r",
            path="r.py",
            files=(),
            digest="",
            problem="regression",
            preprocessors=declared_steps("r", given) if given else (),
        )
        return identity.data_fingerprint(ref, files, DataSettings(**data))

    plain = found(None)
    assert plain == found(None, validation_share=0.2)
    others = [
        found(_scaler()),
        found(StandardScaler(["bp"])),
        found(StandardScaler(["bmi"], output_columns=["b"])),
        found(MinMaxScaler(["bmi"])),
        found([_scaler(), _scaler()]),
        found(_scaler(), validation_share=0.2),
    ]
    assert len({plain, *others}) == 7
    assert found(_scaler()) == others[0]


def test_changes_name_each_step_that_was_added_changed_or_removed() -> None:
    without: dict[str, Any] = {"data": "a"}
    with_steps = without | {"preprocessors": {"1": str(declared_steps("r", _scaler())[0]), "2": "B"}}
    scaled = "StandardScaler(columns=['bmi'])"
    added = [f"preprocessors.1: none -> {scaled}", "preprocessors.2: none -> B"]
    assert identity.changes(without, with_steps) == added
    fewer = without | {"preprocessors": {"1": "B"}}
    assert identity.changes(with_steps, fewer) == [
        f"preprocessors.1: {scaled} -> B",
        "preprocessors.2: B -> none",
    ]
    assert identity.changes(fewer, without) == ["preprocessors.1: B -> none"]


def test_recipes_without_preprocessors_import_neither_ray_nor_the_code_of_preprocessing() -> None:
    code = (
        "import sys; from training.recipe import load; load('diabetes')\n"
        "print([name for name in sys.modules if name == 'ray' or name.startswith('training.data.preprocessing')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
