"""In: a recipe. Out: the libraries that it needs. Fails with SettingError if one that it imports is not installed."""

from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

from training.errors import SettingError
from training.libraries import imported_packages, needed_packages
from training.plan import RunPlan
from training.recipe import Recipe
from training.recipe_metrics import check_library
from training.recipe_sources import RecipeRef
from training.seams import EXTRAS, install_command
from training.supervision.launch import finished
from training.trainers.base import trainer_named


def libraries_of(recipe: Recipe, ref: RecipeRef) -> set[str]:
    """Import names of the libraries that a recipe's file, its trainer and its source need."""
    trainer = trainer_named(recipe.settings.trainer)
    imported = imported_packages(Path(ref.path).read_text(encoding="utf-8"))
    of_source = getattr(recipe.source, "LIBRARIES", ())
    return {*imported, *trainer.DISTRIBUTIONS, *recipe.settings.training.libraries, *of_source}


def check_installed(plan: RunPlan, recipe: Recipe) -> None:
    """Raise :class:`SettingError` when a library is missing that the recipe, its metrics or its trainer need.

    Checks nothing for a run whose training is finished.
    """
    if finished(plan.paths, plan.run_key) is not None:
        return
    trainer = trainer_named(plan.settings.trainer)
    check_libraries(plan.recipe, trainer.DISTRIBUTIONS)
    check_library(recipe.name, recipe.metrics)
    trainer.check_libraries(plan.settings)


def check_libraries(recipe: RecipeRef, of_trainer: Collection[str] = ()) -> None:
    """Raise :class:`SettingError` when the recipe's files import a library of an extra that is not installed.

    The libraries `of_trainer` are left out: the trainer itself says how these are installed together.

    A recipe often imports such a library inside a function, which is called minutes later by a worker.
    """
    for file in (Path(name) for name in recipe.files if name.endswith(".py")):
        imported = needed_packages(file.read_text(encoding="utf-8")) & EXTRAS.keys()
        for library in sorted(imported - set(of_trainer)):
            if find_spec(library) is None:
                raise SettingError(
                    f"recipe {recipe.name}: {file.name} imports {library}, which is not installed; install it by "
                    f"`{install_command(library)}`"
                )
