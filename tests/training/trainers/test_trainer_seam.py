"""No module outside the rooms of the trainers asks which trainer a run has; each trainer answers for itself."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import training
from training.seams import TRAINERS
from training.settings.schema import Settings, section_of_trainer
from training.trainers.base import inspection_of, trainer_named

ROOT = Path(training.__file__).parents[1]
ROOMS = ("training/trainers/", "training/recipes/")
# The registry; the public API; formats by trainer; the log line of the loop's batches; `Torch`, the default of a
# recipe; versions of libraries.
MAY_NAME = {
    "training/seams.py",
    "evergreen/__init__.py",
    "training/checkpoints/checkpoint_log.py",
    "training/recipe.py",
    "tasks/model_formats/base.py",
    "tasks/model_formats/raw_table.py",
    "training/ray_cluster/ray_train.py",
}


def modules() -> Iterator[str]:
    for package in ("evergreen", "flows", "tasks", "training"):
        for file in (ROOT / package).rglob("*.py"):
            name = file.relative_to(ROOT).as_posix()
            if not name.startswith(ROOMS) and name not in MAY_NAME:
                yield name


def asked(tree: ast.AST) -> Iterator[str]:
    """Comparisons with a trainer's name, and mappings by such a name."""
    for node in ast.walk(tree):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            values = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            values = node.keys
        elif isinstance(node, ast.MatchValue):
            values = [node.value]
        yield from (
            one.value
            for value in values
            if value is not None
            for one in ast.walk(value)
            if isinstance(one, ast.Constant) and one.value in TRAINERS
        )


@pytest.mark.parametrize("name", sorted(modules()))
def test_no_other_module_asks_for_a_trainer(name: str) -> None:
    assert not list(asked(ast.parse((ROOT / name).read_text())))


@pytest.mark.parametrize("text", ['x = trainer == "xgboost"', 'x = {"torch": 1}[trainer]'])
def test_the_ways_to_ask_are_seen(text: str) -> None:
    assert list(asked(ast.parse(text)))


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_answers_for_itself(name: str) -> None:
    section = section_of_trainer(name)()
    settings = Settings(training=section)
    assert settings.trainer == name
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    assert settings.epochs > 0
    assert all(vars(section.WORDS).values())
    assert trainer_named(name).MODEL_FILE
    assert callable(inspection_of(name).model_digest)
    names = {f"training.{field}" for field in type(section).model_fields}
    assert {setting for setting in section.FORM.values() if setting} <= names


@pytest.mark.parametrize("name", TRAINERS)
def test_settings_and_trainer_import_no_heavy_library(name: str) -> None:
    code = (
        "import sys; from training.trainers.base import trainer_named; "
        f"from training.settings.schema import section_of_trainer; trainer_named({name!r}); "
        f"section_of_trainer({name!r}); "
        "print(sorted({'torch', 'ray', 'mlflow', 'xgboost', 'sklearn', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
