"""The plan of a retraining run: resolved inputs, run key, and changes since the recipe's last run."""

import secrets
from pathlib import Path

from training import identity
from training.data import dataset
from training.data.sources import Source
from training.data.sources.locate import check_has_target, open_path, with_numbers, without_target
from training.errors import SettingError
from training.initial_weights import CHAMPION, InitialWeights, Start
from training.problems.objectives import objective_named
from training.recipe import BUILT_IN, Recipe
from training.recipe_copy import changed_files
from training.recipe_sources import RecipeRef
from training.records import DatasetVersion, Record, SourceFiles
from training.redaction import redact
from training.settings.schema import Settings
from training.storage.paths import Home, RunPaths
from training.storage.record_files import find_record

LastRun = tuple[RunPaths, identity.Ingredients] | None  # of :func:`training.identity.latest_run`
OTHER_DATA = "data: other than in the last run; its rows are counted when they are prepared"
_SOURCE = "recipe.source"  # the ingredient that is the digest of the recipe's files


class RunPlan(Record):
    """Resolved inputs and run key of one retraining run. `home`, recipe name and run key determine its paths.

    `changes` lists the ingredients that differ from the recipe's last run; `first` says that there was no such run.
    `initial` is what the training starts from; None: new weights. `search` is the key of the search of which the run is
    a trial; empty for other runs. `data_before` is the fingerprint of the last run's dataset if it is another one, and
    `data_changes` says how their rows differ, once the rows are prepared.
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
    initial: InitialWeights | None = None
    search: str = ""
    data_before: str = ""
    data_changes: str = ""

    @property
    def paths(self) -> RunPaths:
        """Paths of the run."""
        return Home(Path(self.home)).run(self.recipe.name, self.run_key)

    @property
    def model(self) -> str:
        """Name of the registered model."""
        return self.settings.tracking.model or self.recipe.name

    @property
    def started_from(self) -> str:
        """The initial weights of the training as readable text; empty if `training.init_from` is not set."""
        if self.initial is not None:
            return self.initial.words
        return "new weights: there was no champion" if self.settings.training.initial_weights else ""

    def find_dataset(self) -> DatasetVersion | None:
        """The dataset version if it is prepared already, else None."""
        return dataset.find(Home(Path(self.home)), self.recipe.name, self.fingerprint)


def choose_source(recipe: Recipe, settings: Settings, home: Home) -> Source:
    """The source at `data.path` if that is set, else the recipe's own source.

    Raises :class:`training.errors.SettingError` if the source lacks what the recipe's problem predicts: numbers, the
    texts themselves, or else a target for each text.
    """
    source = recipe.source
    if settings.data.path is not None:
        classes = getattr(source, "classes", ())
        source = open_path(Path(settings.data.path), home.sources, classes, source)
    if recipe.problem.predicts_text:
        return without_target(source, recipe.problem.name)
    check_has_target(source, recipe.problem.name)
    return with_numbers(source) if objective_named(recipe.problem.name).target == "number" else source


def identify(
    home: Home,
    ref: RecipeRef,
    settings: Settings,
    files: SourceFiles,
    force: bool = False,
    start: Start | None = None,
) -> RunPlan:
    """Plan a run: compute its run key, and what changed since the recipe's last run.

    `force` gives the run a new run key even if nothing changed; an unfinished forced run with the same ingredients is
    resumed instead, from its own initial weights even if there is a new champion. `start` has the weights to which
    `training.init_from` refers at present; None if it is not set.

    Raises :class:`training.errors.SettingError` if the weights to start from are missing.
    """
    return identify_after(identity.latest_run(home, ref.name), home, ref, settings, files, force, start)


def identify_after(
    before: LastRun,
    home: Home,
    ref: RecipeRef,
    settings: Settings,
    files: SourceFiles,
    force: bool = False,
    start: Start | None = None,
) -> RunPlan:
    """As :func:`identify`, where the caller has read the recipe's last run, for many plans at once.

    Raises :class:`SettingError` for a network that is to stream the rows of a table.
    """
    if (
        files.kind == "table"
        and settings.data.feed == "stream"
        and settings.training.rows_of_step is not None
    ):
        raise SettingError(
            f"data.feed: trainer {settings.trainer} streams images, and {files.origin} is a table; use "
            "data.feed=memory, or boosted trees"
        )
    fingerprint = identity.data_fingerprint(ref, files, settings.data)
    code = identity.code_of(files, settings.trainer, ref.problem, preprocessed=bool(ref.preprocessors))
    parts = identity.ingredients(ref, settings, fingerprint, code)
    initial, nonce = (_forced_start if force else _initial_weights)(home, ref.name, parts, start)
    parts = identity.with_start(parts, None if initial is None else initial.digest, nonce)
    return RunPlan(
        home=str(home.root),
        recipe=ref,
        settings=settings,
        files=files,
        fingerprint=fingerprint,
        run_key=identity.run_key(parts),
        ingredients=parts,
        changes=_changes(ref, before, parts),
        first=before is None,
        initial=initial,
        data_before=_data_before(before, fingerprint),
    )


def _data_before(before: LastRun, fingerprint: str) -> str:
    """Fingerprint of the last run's dataset; empty without such a run, and if it had the same dataset."""
    earlier = "" if before is None else str(before[1].get("data", ""))
    return "" if earlier == fingerprint else earlier


def _changes(ref: RecipeRef, before: LastRun, parts: identity.Ingredients) -> tuple[str, ...]:
    """What changed since the recipe's last run, with the names of the recipe's files that changed."""
    if before is None:
        return ()
    run, ingredients = before
    files = changed_files(ref, run.recipe)
    named = f"{_SOURCE}: {', '.join(files)}"
    lines = identity.changes(ingredients, parts)
    lines = [named if files and line.startswith(f"{_SOURCE}: ") else line for line in lines]
    return tuple(OTHER_DATA if line.startswith("data: ") else line for line in lines)


def _initial_weights(
    home: Home, recipe: str, parts: identity.Ingredients, start: Start | None
) -> tuple[InitialWeights | None, str | None]:
    """The initial weights of a run with the ingredients `parts`, and the nonce of an earlier run with the same run key.

    If the champion was trained from the same inputs, the plan gets the run key of the champion's own run: a new
    champion alone is no change. Otherwise, an unfinished run that started from an earlier champion is resumed. Raises
    :class:`training.errors.SettingError` if the weights are missing.
    """
    if start is None:
        return None, None
    if start.inputs == identity.inputs_digest(parts):
        return start.before, start.forced
    resumed = None
    if start.reference == CHAMPION or start.missing:
        resumed = identity.known_start(home, recipe, parts, start, unfinished=not start.missing)
    if resumed is None and start.missing:
        raise SettingError(start.missing)
    return resumed or start.weights, None


def _forced_start(
    home: Home, recipe: str, parts: identity.Ingredients, start: Start | None
) -> tuple[InitialWeights | None, str]:
    """The initial weights and the nonce of the unfinished forced run that is resumed, else of a new forced run.

    A new forced run starts from the present weights. Raises :class:`training.errors.SettingError` if they are missing.
    """
    begun = identity.unfinished_force(home, recipe, parts, start)
    if begun is not None:
        return begun
    if start is not None and start.missing:
        raise SettingError(start.missing)
    return None if start is None else start.weights, secrets.token_hex(8)


def arguments_of_run(home: Home, recipe: str, run_key: str) -> list[str]:
    """The arguments of a command line for a run: the recipe, and the run's `data.path`, which some recipes need.

    The recipe is the name of a built-in recipe, or the path of a user's recipe: `path/to/NAME.py` if the run has no
    readable plan, or if the recipe file is no longer there.
    """
    run = home.run(recipe, run_key)
    plan = find_record(run.ingredients, RunPlan, run.root.name)
    path = Path(plan.recipe.path if plan is not None else "")
    foreign = path.is_file() and path.parent != Path(__file__).parent / "recipes"
    named = str(path) if foreign else recipe if recipe in BUILT_IN else f"path/to/{recipe}.py"
    data = plan.settings.data.path if plan is not None else None
    return [named] if data is None else [named, "--set", redact(f"data.path={data}")]
