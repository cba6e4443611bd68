"""A `Recipe` object stands for the file that defines it, and a recipe file can't load itself without end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.errors import SettingError
from training.recipe import load
from training.recipe_file import file_of

_RECIPE = (
    "from evergreen import Classification, Digits, Recipe, plan\n"
    "recipe = Recipe('own', source=Digits(), problem=Classification())\n"
)


def printed(script: Path, home: Path) -> str:
    environment = os.environ | {"EVERGREEN_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout or done.stderr


@pytest.mark.extended
def test_a_script_plans_its_own_recipe(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        _RECIPE
        + "if __name__ == '__main__':\n"
        + "    print(plan(recipe).run_key == plan(__file__).run_key == plan('own.py').run_key)\n"
    )
    assert printed(script, tmp_path / "home").split() == ["True"]


@pytest.mark.extended
def test_a_script_that_imports_a_recipe_plans_the_file_that_defines_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(_RECIPE)
    script = tmp_path / "nightly.py"
    script.write_text(
        "from evergreen import plan\nfrom own import recipe\n"
        "print(plan(recipe).run_key == plan('own.py').run_key)\n"
    )
    assert printed(script, tmp_path / "home").split() == ["True"]


@pytest.mark.extended
@pytest.mark.parametrize("argument", ["recipe", "__file__"])
def test_a_recipe_file_that_plans_itself_while_it_is_loaded_is_refused(argument: str, tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(_RECIPE + f"plan({argument})\n")
    said = printed(script, tmp_path / "home")
    assert f"recipe {script}: the file calls a function of Evergreen" in said
    assert 'if __name__ == "__main__":' in said
    assert "RecursionError" not in said


def test_an_object_that_is_assigned_where_workers_do_not_see_it_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        _RECIPE.replace("import Class", "import Settings, Class")
        + "if __name__ == '__main__':\n"
        + "    recipe = Recipe('own', source=Digits(), settings=Settings(seed=3))\n"
        + "    plan(recipe)\n"
    )
    said = printed(script, tmp_path / "home")
    assert f"{script}, as workers load it, defines another recipe than this object" in said


def test_an_object_that_no_file_defines_is_refused() -> None:
    recipe = load("digits")[0]
    assert file_of(recipe).name == "digits.py"
    from training.recipe_declaration import Recipe

    other = Recipe("other", source=recipe.source, trainer=recipe.trainer)
    with pytest.raises(SettingError, match="recipe other: no file defines this object as `recipe`"):
        file_of(other)


def test_an_object_that_two_files_define_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "defines_a.py").write_text(_RECIPE)
    (tmp_path / "defines_b.py").write_text("import defines_a\nrecipe = defines_a.recipe\n")
    for name in ("defines_a", "defines_b"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import defines_b  # type: ignore[import-not-found]

    with pytest.raises(SettingError, match=r"defines_a\.py and .*defines_b\.py define this object"):
        file_of(defines_b.recipe)
