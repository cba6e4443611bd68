"""Type checkers know the settings that each trainer of a recipe takes as keyword arguments."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

import evergreen
from training.trainers.choice import BySettings
from training.trainers.torch.settings import TrainingSettings

CHOICES = sorted(
    name
    for name in evergreen.__all__
    if isinstance(exported := getattr(evergreen, name), type) and issubclass(exported, BySettings)
)
PROGRAM = """
from evergreen import LightGBM, Torch, XGBoost
XGBoost(max_depth=4, rounds=10)
XGBoost(max_dept=4)
LightGBM(num_leaves="many")
def build(shape, outputs): ...
Torch(build, epochs=3, strategy="fsdp")
"""


def plain(annotation: Any) -> Any:
    """The type without its limits."""
    if get_origin(annotation) is Annotated:
        return plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(map(plain, get_args(annotation)))]  # noqa: UP007 - the number of types is not known
    return annotation


def test_the_trainers_of_settings_are_found() -> None:
    assert {"XGBoost", "LightGBM", "Lightning", "Accelerate", "Transformers", "Keras", "TensorFlow"} == set(
        CHOICES
    )


@pytest.mark.parametrize("name", ["Torch", *CHOICES])
def test_the_arguments_are_the_fields_of_the_section(name: str) -> None:
    choice = getattr(evergreen, name)
    taken = signature(choice.__init__).parameters
    (arguments,) = get_args(taken["settings"].annotation)
    section = TrainingSettings if name == "Torch" else choice.SECTION
    fields = {
        field: plain(described.annotation)
        for field, described in section.model_fields.items()
        if field not in {"trainer", *taken}
    }
    if "class_weights" in fields:
        fields |= {"class_weights": Literal["balanced"] | Mapping[str, float] | None}
    if "threshold" in fields:
        fields |= {"threshold": float | Literal["f1", "balanced_accuracy"] | Mapping[str, float] | None}
    if "freeze" in fields:  # the section converts what a recipe may write
        fields |= {"freeze": Sequence[str], "init_from": str | Path | None}
    assert {field: plain(hint) for field, hint in get_type_hints(arguments).items()} == fields


@pytest.mark.extended
def test_a_type_checker_refuses_an_unknown_setting(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(PROGRAM)
    root = Path(evergreen.__file__).parent.parent
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--cache-dir",
            str(tmp_path / "cache"),
            "--follow-imports=silent",
            "recipe.py",
        ],
        cwd=tmp_path,
        env={"MYPYPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if " error: " in line]
    assert len(errors) == 2, done.stdout + done.stderr
    assert 'recipe.py:4: error: Unexpected keyword argument "max_dept" for "XGBoost"' in errors[0]
    assert 'recipe.py:5: error: Argument "num_leaves" to "LightGBM"' in errors[1]
