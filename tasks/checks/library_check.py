"""In: a recipe. Out: nothing. Fails with SettingError when the recipe imports a library that is not installed."""

from importlib.util import find_spec
from pathlib import Path

from training.errors import SettingError
from training.libraries import imported_packages
from training.recipe import RecipeRef
from training.seams import EXTRAS, install_command


def check_libraries(recipe: RecipeRef) -> None:
    """Raise :class:`SettingError` when the recipe's files import a library of an extra that is not installed.

    A recipe often imports such a library inside a function, which is called minutes later by a worker.
    """
    for file in (Path(name) for name in recipe.files if name.endswith(".py")):
        for library in sorted(imported_packages(file.read_text(encoding="utf-8")) & EXTRAS.keys()):
            if find_spec(library) is None:
                raise SettingError(
                    f"recipe {recipe.name}: {file.name} imports {library}, which is not installed; install it by "
                    f"`{install_command(library)}`"
                )
