"""The run key: a hash of everything that the weights depend on; and which ingredients differ between two runs."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from training.code_closure import code_digests
from training.data import versions
from training.data.row_kinds import PREPROCESSING_MODULES
from training.libraries import library_versions
from training.problems.objectives import objective_module
from training.recipe import RecipeRef
from training.records import ProblemName, SourceFiles
from training.settings.schema import DataSettings, Settings, TrainerName
from training.storage.files import digest_json
from training.storage.paths import Home, RunPaths
from training.storage.record_files import find_record
from training.trainers.base import trainer_module, trainer_named

# The number of workers and threads sets the order in which gradients are summed; other settings of `scaling` do not
# change the weights.
_SCALING = {"num_workers", "threads_per_worker"}
_STEPS = "preprocessors"  # an ingredient of recipes that declare preprocessors
_NOT_THERE = {"versions.": "not recorded", "code.": "not used", f"{_STEPS}.": "none"}
_DIGEST = re.compile(r"[0-9a-f]{21,}")
Ingredients = dict[str, Any]


def data_fingerprint(ref: RecipeRef, files: SourceFiles, settings: DataSettings) -> str:
    """Identifies the dataset version that a recipe makes of source files; see :func:`versions.fingerprint`.

    With a function `transform_rows`, the versions of the recipe's libraries count, since the function may call them.

    Raises :class:`training.errors.SettingError` for settings, a problem or preprocessors that this kind of source does
    not have.
    """
    transform = digest_json([ref.transform, library_versions(ref)]) if ref.transform else ""
    found = versions.fingerprint(files, settings, ref.problem, transform)
    if not ref.preprocessors:
        return found
    from training.data.preprocessing.preparation import preprocessed_fingerprint

    return preprocessed_fingerprint(found, ref.preprocessors, files, settings)


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
    if trainer_named(settings.trainer).promise(settings).any_workers:
        values["scaling"]["num_workers"] = "any"
    made: Ingredients = {
        "data": fingerprint,
        "recipe": {"name": recipe.name, "source": recipe.digest, "problem": recipe.problem},
        "settings": values,
        "code": dict(code),
        "versions": library_versions(recipe, trainer_named(settings.trainer).DISTRIBUTIONS),
    }
    if recipe.preprocessors:
        made[_STEPS] = {str(number): str(step) for number, step in enumerate(recipe.preprocessors, 1)}
    return made | ({"forced": nonce} if nonce else {})


def unfinished_force(home: Home, recipe: str, parts: Ingredients) -> str | None:
    """Nonce of the newest unfinished forced run with these ingredients, or None if there is none."""
    for run, before in _kept(home, recipe):
        nonce: str | None = before.pop("forced", None)
        if nonce and before == parts and not run.release.is_file():
            return nonce
    return None


def run_key(parts: Ingredients) -> str:
    """sha256 over the canonical JSON of the ingredients."""
    return digest_json(parts)


def latest_ingredients(home: Home, recipe: str) -> Ingredients | None:
    """Ingredients of the newest run of `recipe` whose plan can be read, or None if there is none."""
    return next((parts for _, parts in _kept(home, recipe)), None)


def runs_of(home: Home, recipe: str) -> list[RunPaths]:
    """All runs of a recipe, newest last."""
    return [RunPaths(file.parent) for file in reversed(_plans(home, recipe))]


class _Plan(BaseModel):
    """The one field read here of a run's plan, whose other fields may be those of another version of Evergreen."""

    ingredients: Ingredients


def _kept(home: Home, recipe: str) -> Iterator[tuple[RunPaths, Ingredients]]:
    """A recipe's runs and their ingredients, newest first. Runs with a damaged plan are skipped with a warning."""
    for file in _plans(home, recipe):
        if (plan := find_record(file, _Plan, file.parent.name)) is not None:
            yield RunPaths(file.parent), plan.ingredients


def _plans(home: Home, recipe: str) -> list[Path]:
    """Plan files of a recipe's runs, newest first."""
    files = home.runs(recipe).glob("*/ingredients.json")
    return sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def changes(before: Ingredients, after: Ingredients, prefix: str = "") -> list[str]:
    """Lines for people that name each ingredient that differs: `settings.training.epochs: 5 -> 3`; digests are cut.

    A library version that only one of the two runs has is `not recorded` in the other run: its recipe did not import
    the library, or an older version of Evergreen did not record it. A module that only one run has is `not used` in
    the other.
    """
    found = []
    absent = _NOT_THERE.get(prefix)
    for name in sorted(before.keys() | after.keys()):
        default: Any = {} if prefix + name == _STEPS else absent
        old, new = before.get(name, default), after.get(name, default)
        if isinstance(old, dict) and isinstance(new, dict):
            found += changes(old, new, f"{prefix}{name}.")
        elif isinstance(old, dict) or isinstance(new, dict):
            found.append(f"{prefix}{name}: another version of Evergreen recorded it in another form")
        elif old != new:
            found.append(f"{prefix}{name}: {_short(old)} -> {_short(new)}")
    return found


def _short(value: Any) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and _DIGEST.fullmatch(value) else str(value)
