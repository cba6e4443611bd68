"""`evergreen plan` of a recipe that names no trainer."""

from pathlib import Path

import pytest

from flows.cli.main import main
from training.storage.paths import HOME_VARIABLE


def test_plan_says_which_trainer_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "only.py"
    recipe.write_text(
        "from evergreen import BundledTable, Recipe, Regression\n"
        "recipe = Recipe('only', source=BundledTable('diabetes'), problem=Regression())\n"
    )
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    assert main(["plan", str(recipe)]) == 0
    assert "xgboost, for a table: the recipe names none" in capsys.readouterr().out
