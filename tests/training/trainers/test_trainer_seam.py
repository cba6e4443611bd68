"""No module outside the rooms of the trainers asks which trainer a run has; each trainer answers for itself."""

import ast
import subprocess
import sys
import tomllib

import pytest
from named_parts import ROOT, WITH_FOLDER, asked_names, modules_outside

from tasks.model_formats.base import format_name, format_of
from training.seams import TRAINERS, formats_of
from training.settings.schema import Settings, TrackingSettings, section_of_trainer
from training.trainers.base import inspection_of, trainer_named

TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
HEAVY = set(TOOLS["ruff"]["lint"]["flake8-tidy-imports"]["banned-module-level-imports"])
ROOMS = ("training/trainers/", "training/recipes/")
# The registry; the public API; versions of libraries; `Torch`, the default of a recipe; loaders by MLflow's flavor.
MAY_NAME = {
    "training/seams.py",
    "evergreen/__init__.py",
    "training/checkpoints/checkpoint_files.py",
    "training/torch_choice.py",
    "tasks/model_formats/raw_table.py",
}


@pytest.mark.extended
@pytest.mark.parametrize("name", modules_outside(ROOMS, MAY_NAME))
def test_no_other_module_asks_for_a_trainer(name: str) -> None:
    assert not list(asked_names(ast.parse((ROOT / name).read_text()), TRAINERS))


@pytest.mark.parametrize("text", ['x = trainer == "xgboost"', 'x = {"torch": 1}[trainer]'])
def test_the_ways_to_ask_are_seen(text: str) -> None:
    assert list(asked_names(ast.parse(text), TRAINERS))


def test_the_import_contract_of_trainers_lists_each() -> None:
    """`make check` refuses a trainer that imports another, also through other modules, if the contract lists it."""
    (contract,) = (
        candidate for candidate in TOOLS["importlinter"]["contracts"] if candidate["type"] == "independence"
    )
    assert sorted(contract["modules"]) == sorted(f"training.trainers.{name}" for name in WITH_FOLDER)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_answers_for_itself(name: str) -> None:
    section = section_of_trainer(name)()
    settings = Settings(training=section)
    assert settings.trainer == name
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    assert settings.epochs > 0
    assert all(text for word, text in vars(section.WORDS).items() if word != "gain")  # networks have none
    assert trainer_named(name).MODEL_FILE
    assert callable(inspection_of(name).model_digest)
    assert section.FORMATS
    assert section.FORMATS[0] == format_name(settings)
    for chosen in formats_of(name, section.FORMATS):
        assert format_of(Settings(training=section, tracking=TrackingSettings(model_format=chosen))).FLAVOR
    names = {f"training.{field}" for field in type(section).model_fields}
    assert {setting for setting in section.FORM.values() if setting} <= names


@pytest.mark.extended
@pytest.mark.parametrize("name", TRAINERS)
def test_settings_and_trainer_import_no_heavy_library(name: str) -> None:
    code = (
        "import sys; from training.trainers.base import trainer_named; "
        f"from training.settings.schema import section_of_trainer; trainer_named({name!r}); "
        f"section_of_trainer({name!r}); "
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
