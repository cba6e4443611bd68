"""The run key: the hash of everything that the weights depend on, and what changed when it changed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from training.code_closure import code_digests
from training.data import dataset
from training.libraries import library_versions
from training.recipe import RecipeRef
from training.records import SourceFiles
from training.settings.schema import Settings
from training.storage.files import digest_json
from training.storage.paths import Home, RunPaths
from training.storage.record_files import find_record

# Of the other sections nothing changes the weights; of `scaling`, the workers and threads do, as they set the
# order in which gradients are summed.
_SCALING = {"num_workers", "threads_per_worker"}
_TRAINER = "training.trainers.torch.worker"
_NOT_THERE = {"versions.": "not recorded", "code.": "not used"}
Ingredients = dict[str, Any]


def code_of(files: SourceFiles) -> dict[str, str]:
    """Digests of the modules that compute the weights of a recipe with these source files, by module."""
    return code_digests(_TRAINER, *dataset.transform_modules(files))


def ingredients(
    recipe: RecipeRef,
    settings: Settings,
    fingerprint: str,
    code: Mapping[str, str],
    nonce: str | None = None,
) -> Ingredients:
    """The ingredients of the run key, as JSON.

    `fingerprint` is that of the dataset, `code` comes from :func:`code_of`. `nonce` makes a forced run differ from all
    others.
    """
    values = settings.model_dump(
        mode="json",
        include={"seed": True, "data": {"feed", "validation_share"}, "training": True, "scaling": _SCALING},
    )
    if (
        settings.training.virtual_shards is not None
    ):  # then the weights are the same for any number of workers
        values["scaling"]["num_workers"] = "any"
    made: Ingredients = {
        "data": fingerprint,
        "recipe": {"name": recipe.name, "source": recipe.digest},
        "settings": values,
        "code": dict(code),
        "versions": library_versions(recipe),
    }
    return made | ({"forced": nonce} if nonce else {})


def unfinished_force(home: Home, recipe: str, parts: Ingredients) -> str | None:
    """Nonce of the newest forced run with these ingredients that came to no end, or None when there is none."""
    for run, before in _kept(home, recipe):
        nonce: str | None = before.pop("forced", None)
        if nonce and before == parts and not run.release.is_file():
            return nonce
    return None


def run_key(parts: Ingredients) -> str:
    """sha256 over the canonical JSON of the ingredients."""
    return digest_json(parts)


def latest_ingredients(home: Home, recipe: str) -> Ingredients | None:
    """Ingredients of the newest run of `recipe`, or None when there was none."""
    return next((parts for _, parts in _kept(home, recipe)), None)


def runs_of(home: Home, recipe: str) -> list[RunPaths]:
    """All runs of a recipe, the newest last."""
    return [RunPaths(file.parent) for file in reversed(_plans(home, recipe))]


class _Plan(BaseModel):
    """What counts here of a run's plan, which another version of Evergreen may have written."""

    ingredients: Ingredients


def _kept(home: Home, recipe: str) -> Iterator[tuple[RunPaths, Ingredients]]:
    """A recipe's runs and their ingredients, the newest first. A damaged plan of an old run stops no new one."""
    for file in _plans(home, recipe):
        if (plan := find_record(file, _Plan, file.parent.name)) is not None:
            yield RunPaths(file.parent), plan.ingredients


def _plans(home: Home, recipe: str) -> list[Path]:
    """Plans of a recipe's runs, the newest first."""
    files = home.runs(recipe).glob("*/ingredients.json")
    return sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def changes(before: Ingredients, after: Ingredients, prefix: str = "") -> list[str]:
    """Which ingredients differ, for people: `settings.training.epochs: 5 -> 3`; digests are shortened.

    A version that only one of the two runs has is `not recorded` in the other: that run's recipe did not import the
    library, or an older version of Evergreen did not record it.
    """
    found = []
    absent = _NOT_THERE.get(prefix)
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, absent), after.get(name, absent)
        if isinstance(old, dict) and isinstance(new, dict):
            found += changes(old, new, f"{prefix}{name}.")
        elif isinstance(old, dict) or isinstance(new, dict):
            found.append(f"{prefix}{name}: another version of Evergreen recorded it in another form")
        elif old != new:
            found.append(f"{prefix}{name}: {_short(old)} -> {_short(new)}")
    return found


def _short(value: Any) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and len(value) > 20 else str(value)
