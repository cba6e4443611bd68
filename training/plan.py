"""The plan of a retraining run: resolved inputs, run key, and changes since the recipe's last run."""

import secrets
from pathlib import Path

from training import identity
from training.data import dataset
from training.data.sources import Source
from training.data.sources.locate import open_path, with_numbers
from training.problems.objectives import objective_named
from training.recipe import BUILT_IN, Recipe, RecipeRef
from training.records import DatasetVersion, Record, SourceFiles
from training.settings.schema import Settings
from training.storage.paths import Home, RunPaths
from training.storage.record_files import find_record


class RunPlan(Record):
    """Resolved inputs and run key of one retraining run. `home`, recipe name and run key determine its paths.

    `changes` lists the ingredients that differ from the recipe's last run; `first` says that there was no such run.
    """

    home: str
    recipe: RecipeRef
    settings: Settings
    files: SourceFiles
    fingerprint: str
    run_key: str
    ingredients: identity.Ingredients
    changes: tuple[str, ...]
    first: bool

    @property
    def paths(self) -> RunPaths:
        """Paths of the run."""
        return Home(Path(self.home)).run(self.recipe.name, self.run_key)

    @property
    def model(self) -> str:
        """Name of the registered model."""
        return self.settings.tracking.model or self.recipe.name

    def find_dataset(self) -> DatasetVersion | None:
        """The dataset version if it is prepared already, else None."""
        return dataset.find(Home(Path(self.home)), self.recipe.name, self.fingerprint)


def choose_source(recipe: Recipe, settings: Settings, home: Home) -> Source:
    """The source at `data.path` if that is set, else the recipe's own source.

    Raises :class:`training.errors.SettingError` for a source of classes if the recipe's problem predicts numbers.
    """
    source = recipe.source
    if settings.data.path is not None:
        classes = getattr(source, "classes", ())
        source = open_path(Path(settings.data.path).expanduser(), home.sources, classes, source)
    return with_numbers(source) if objective_named(recipe.problem.name).target == "number" else source


def identify(
    home: Home, ref: RecipeRef, settings: Settings, files: SourceFiles, force: bool = False
) -> RunPlan:
    """Plan a run: compute its run key, and what changed since the recipe's last run.

    `force` gives the run a new run key even if nothing changed; an unfinished forced run with the same ingredients is
    resumed instead.
    """
    fingerprint = identity.data_fingerprint(ref, files, settings.data)
    code = identity.code_of(files, settings.trainer, ref.problem, preprocessed=bool(ref.preprocessors))
    parts = identity.ingredients(ref, settings, fingerprint, code)
    if force:
        nonce = identity.unfinished_force(home, ref.name, parts) or secrets.token_hex(8)
        parts = identity.ingredients(ref, settings, fingerprint, code, nonce)
    before = identity.latest_ingredients(home, ref.name)
    return RunPlan(
        home=str(home.root),
        recipe=ref,
        settings=settings,
        files=files,
        fingerprint=fingerprint,
        run_key=identity.run_key(parts),
        ingredients=parts,
        changes=tuple(identity.changes(before, parts)) if before else (),
        first=before is None,
    )


def recipe_argument(home: Home, recipe: str, run_key: str) -> str:
    """The recipe argument of a command line for a run: the name of a built-in recipe, or the path of a user's recipe.

    The path is `path/to/NAME.py` if the run has no readable plan, or if the recipe file is no longer there.
    """
    run = home.run(recipe, run_key)
    plan = find_record(run.ingredients, RunPlan, run.root.name)
    path = Path(plan.recipe.path if plan is not None else "")
    foreign = path.is_file() and path.parent != Path(__file__).parent / "recipes"
    if recipe in BUILT_IN and not foreign:
        return recipe
    return str(path) if foreign else f"path/to/{recipe}.py"
