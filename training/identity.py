"""The run key: a hash of everything that the weights depend on; and which ingredients differ between two runs."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from training.code_closure import code_digests
from training.data import versions
from training.data.row_kinds import PREPROCESSING_MODULES
from training.initial_weights import CHAMPION, InitialWeights, Start
from training.libraries import library_versions
from training.problems.objectives import objective_module
from training.recipe_sources import RecipeRef
from training.records import ProblemName, SourceFiles
from training.settings.schema import DataSettings, Settings, TrainerName
from training.storage.files import digest_json
from training.storage.paths import Home, RunPaths, newest_first
from training.storage.record_files import find_record
from training.trainers.base import trainer_module, trainer_named

# The number of workers and threads sets the order in which gradients are summed; other settings of `scaling` do not
# change the weights.
_SCALING = {"num_workers", "threads_per_worker"}
_STEPS = "preprocessors"  # an ingredient of recipes that declare preprocessors
_INITIAL = "initial_weights"  # an ingredient of runs that start from given weights
_FORCED = "forced"  # an ingredient of forced runs
_WITHOUT: dict[str, Any] = {_STEPS: {}, _INITIAL: "new"}  # what a run without these ingredients has instead
_NOT_THERE = {"versions.": "not recorded", "code.": "not used", f"{_STEPS}.": "none"}
_DIGEST = re.compile(r"[0-9a-f]{21,}")
Ingredients = dict[str, Any]


def data_fingerprint(ref: RecipeRef, files: SourceFiles, settings: DataSettings) -> str:
    """Fingerprint of the dataset version that a recipe makes of source files; see :func:`versions.fingerprint`.

    With a function `transform_rows`, the versions of the recipe's libraries count, since the function may call them.

    Raises :class:`training.errors.SettingError` for settings, a problem or preprocessors that this kind of source does
    not have, and :class:`training.errors.DataError` for images of a single class, if the problem is to predict the
    class.
    """
    transform = digest_json([ref.transform, library_versions(ref)]) if ref.transform else ""
    fingerprint = versions.fingerprint(files, settings, ref.problem, transform)
    if not ref.preprocessors:
        return fingerprint
    from training.data.preprocessing.preparation import preprocessed_fingerprint

    return preprocessed_fingerprint(fingerprint, ref.preprocessors, files, settings)


def code_of(
    files: SourceFiles,
    trainer: TrainerName = "torch",
    problem: ProblemName = "classification",
    preprocessed: bool = False,
) -> dict[str, str]:
    """Digests of Evergreen's modules that compute the weights from these source files, by module name."""
    further = PREPROCESSING_MODULES if preprocessed else ()
    return code_digests(
        trainer_module(trainer), objective_module(problem), *versions.transform_modules(files), *further
    )


def ingredients(
    recipe: RecipeRef,
    settings: Settings,
    fingerprint: str,
    code: Mapping[str, str],
    nonce: str | None = None,
) -> Ingredients:
    """The ingredients of the run key, as JSON.

    `fingerprint` identifies the dataset version; `code` comes from :func:`code_of`. `nonce`, a random text, gives a
    forced run its own run key. Settings that do not change the weights are left out.
    """
    values = settings.model_dump(
        mode="json",
        include={"seed": True, "data": {"feed", "validation_share"}, "training": True, "scaling": _SCALING},
    )
    for name in settings.training.NOT_IN_KEY:
        del values["training"][name]
    if trainer_named(settings.trainer).promise(settings).any_workers:
        values["scaling"]["num_workers"] = "any"
    made: Ingredients = {
        "data": fingerprint,
        "recipe": {"name": recipe.name, "source": recipe.digest, "problem": recipe.problem},
        "settings": values,
        "code": dict(code),
        "versions": library_versions(
            recipe, trainer_named(settings.trainer).DISTRIBUTIONS + settings.training.libraries
        ),
    }
    if recipe.preprocessors:
        made[_STEPS] = {str(number): str(step) for number, step in enumerate(recipe.preprocessors, 1)}
    return with_start(made, None, nonce)


def with_start(parts: Ingredients, initial: str | None, nonce: str | None) -> Ingredients:
    """Add to `parts` the digest of the initial weights, if any, and the nonce of a forced run."""
    return parts | ({_INITIAL: initial} if initial else {}) | ({_FORCED: nonce} if nonce else {})


def inputs_digest(parts: Ingredients) -> str:
    """Digest of the ingredients without initial weights and nonce: of data, recipe, code, settings and versions.

    A champion with the same digest as a new plan was trained from the same inputs, whichever its initial weights were.
    """
    return digest_json({name: part for name, part in parts.items() if name not in (_INITIAL, _FORCED)})


class _Plan(BaseModel):
    """The fields read here of a run's plan, whose other fields may be those of another version of Evergreen."""

    ingredients: Ingredients
    initial: InitialWeights | None = None
    search: str = ""


def known_start(
    home: Home, recipe: str, parts: Ingredients, start: Start, unfinished: bool
) -> InitialWeights | None:
    """Initial weights of the newest run with the same inputs and the reference of `start`; None without such a run.

    With `unfinished`, finished runs are ignored. Forced runs are always ignored, because they have run keys of their
    own; so are unfinished runs without a copy of their initial weights, which can't start if the weights are gone.
    Trials of a search are ignored, too: all trials of a search start from the same weights.
    """
    wanted = inputs_digest(parts)
    for run, plan in _kept(home, recipe):
        initial = plan.initial
        if initial is None or (initial.reference, initial.model) != (start.reference, start.model):
            continue
        if _FORCED in plan.ingredients or plan.search:
            continue
        usable = not unfinished if run.release.is_file() else run.initial_weights.is_file()
        if usable and inputs_digest(plan.ingredients) == wanted:
            return initial
    return None


def unfinished_force(
    home: Home, recipe: str, parts: Ingredients, start: Start | None
) -> tuple[InitialWeights | None, str] | None:
    """Initial weights and nonce of the newest unfinished forced run with these inputs, or None if there is none.

    `parts` are ingredients without initial weights. A run that started from an earlier champion, or from weights that
    are missing now, counts if it has its copy of them.
    """
    wanted = inputs_digest(parts)
    for run, plan in _kept(home, recipe):
        nonce: str | None = plan.ingredients.get(_FORCED)
        if not nonce or run.release.is_file() or inputs_digest(plan.ingredients) != wanted:
            continue
        if _starts_from(start, run, plan):
            return plan.initial, nonce
    return None


def _starts_from(start: Start | None, run: RunPaths, plan: _Plan) -> bool:
    """Whether the run started from the weights of `start`, or from those that the same reference named then."""
    digest = plan.initial.digest if plan.initial is not None else None
    now = start.weights.digest if start is not None and start.weights is not None else None
    if start is None or (digest == now and not start.missing):
        return digest == now
    if plan.initial is None or not (start.reference == CHAMPION or start.missing):
        return False
    same = (plan.initial.reference, plan.initial.model) == (start.reference, start.model)
    return same and run.initial_weights.is_file()


def run_key(parts: Ingredients) -> str:
    """sha256 over the canonical JSON of the ingredients."""
    return digest_json(parts)


def latest_run(home: Home, recipe: str) -> tuple[RunPaths, Ingredients] | None:
    """The newest run of `recipe` whose plan can be read, and its ingredients; None if there is none."""
    return next(((run, plan.ingredients) for run, plan in _kept(home, recipe) if not plan.search), None)


def runs_of(home: Home, recipe: str) -> list[RunPaths]:
    """All runs of a recipe, newest last."""
    return [RunPaths(file.parent) for file in reversed(_plans(home, recipe))]


def _kept(home: Home, recipe: str) -> Iterator[tuple[RunPaths, _Plan]]:
    """A recipe's runs and their plans, newest first. Runs with a damaged plan are skipped with a warning."""
    for file in _plans(home, recipe):
        if (plan := find_record(file, _Plan, file.parent.name)) is not None:
            yield RunPaths(file.parent), plan


def _plans(home: Home, recipe: str) -> list[Path]:
    """Plan files of a recipe's runs, newest first."""
    return newest_first(home.runs(recipe), "ingredients.json")


def changes(before: Ingredients, after: Ingredients, prefix: str = "") -> list[str]:
    """Lines for people that name each ingredient that differs: `settings.training.epochs: 5 -> 3`; digests are cut.

    A library version that only one of the two runs has is `not recorded` in the other run: its recipe did not import
    the library, or an older version of Evergreen did not record it. A module that only one run has is `not used` in
    the other.
    """
    lines = []
    absent = _NOT_THERE.get(prefix)
    for name in sorted(before.keys() | after.keys()):
        default = _WITHOUT.get(prefix + name, absent)
        old, new = before.get(name, default), after.get(name, default)
        if isinstance(old, dict) and isinstance(new, dict):
            lines += changes(old, new, f"{prefix}{name}.")
        elif isinstance(old, dict) or isinstance(new, dict):
            lines.append(f"{prefix}{name}: another version of Evergreen recorded it in another form")
        elif old != new:
            lines.append(f"{prefix}{name}: {_short(old)} -> {_short(new)}")
    return lines


def _short(value: Any) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and _DIGEST.fullmatch(value) else str(value)
