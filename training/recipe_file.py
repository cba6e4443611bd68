"""The file that defines a `Recipe` object. Workers load a recipe from its file, also if a call names the object."""

import ast
import sys
from pathlib import Path

from training.errors import SettingError
from training.recipe_declaration import Recipe


def file_of(recipe: Recipe) -> Path:
    """The file whose variable `recipe` is this object, among the files that this process has executed.

    Raises :class:`SettingError` if no file, or more than one, defines the object.
    """
    names = {
        getattr(module, "__file__", None)
        for module in list(sys.modules.values())
        if getattr(module, "__dict__", {}).get("recipe") is recipe
    }
    files = [Path(name).resolve() for name in sorted(filter(None, names))]
    if len(files) > 1:  # other modules may import the object from the file that defines the object
        files = [file for file in files if _assigns(file)]
    if len(files) != 1:
        what = f"{' and '.join(map(str, files))} define" if files else "no file defines"
        raise SettingError(
            f"recipe {recipe.name}: {what} this object as `recipe`, and workers load a recipe from its file: write "
            "`recipe = Recipe(...)` into one file that ends in .py, or pass the file's path"
        )
    return files[0]


def check_same(loaded: Recipe, given: Recipe, path: Path) -> None:
    """Raise :class:`SettingError` if the recipe of the file `path`, as `loaded`, is another than the object `given`.

    When a file is loaded, code below `if __name__ == "__main__":` is not executed.
    """
    if (loaded.name, loaded.problem.name, loaded.settings) != (
        given.name,
        given.problem.name,
        given.settings.beside(path.parent),
    ):
        raise SettingError(
            f"recipe {given.name}: {path}, as workers load it, defines another recipe than this object, in name, "
            'problem or settings. Define it outside of `if __name__ == "__main__":`, and give values that vary as '
            "settings={...}."
        )


def _assigns(file: Path) -> bool:
    """Whether the code of a file assigns to the name `recipe`."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return any(
        isinstance(node, ast.Name) and node.id == "recipe" and isinstance(node.ctx, ast.Store)
        for node in nodes
    )
