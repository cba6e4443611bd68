"""Real datasets, recipes and trainings small enough for tests: no worker processes, a few seconds each."""

from pathlib import Path
from typing import Any

from training import identity
from training.attempts.job import TrainingJob
from training.data import versions
from training.data.preparation.prepare import plan_shards, write_raw
from training.data.sources import Source
from training.data.sources.digits import Digits
from training.recipe import load
from training.records import DatasetVersion, ProblemName, SourceFiles
from training.settings.overrides import resolve
from training.settings.schema import DataSettings, Settings
from training.storage.paths import Home
from training.supervision.launch import make_job

LINEAR = "nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))"
_RECIPE = """
from training.data.images.augmentation import Augmentation
from training.recipe import Recipe
from training.data.sources.digits import Digits

def build_model(shape, classes):
    from torch import nn
    return {model}

recipe = Recipe("{name}", "for a test", Digits(), build_model=build_model, augmentation=Augmentation({augmentation}))
"""


def tiny_settings(**overrides: Any) -> Settings:
    """Settings of recipe digits for two epochs in this process; `overrides` are sections: `training={...}`."""
    base = {
        "scaling": {"num_workers": 0, "use_gpu": "no"},
        "training": {"epochs": 2},
        "tracking": {"system_metrics": False},
    }
    return resolve(load("digits")[0].settings, base, overrides)


def prepared(
    home: Home,
    source: Source | None = None,
    name: str = "digits",
    data: dict[str, Any] | None = None,
    problem: ProblemName = "classification",
) -> DatasetVersion:
    """Fetch `source` (default: digits) and prepare its dataset version in this process."""
    files = (source or Digits()).fetch(home.sources / name)
    return prepared_from(home, files, name, DataSettings.model_validate(data or {}), problem)


def prepared_from(
    home: Home,
    files: SourceFiles,
    name: str,
    settings: DataSettings,
    problem: ProblemName = "classification",
) -> DatasetVersion:
    """Prepare a dataset version from fetched files in this process."""
    identity_of_data = versions.fingerprint(files, settings, problem)
    raw_folder = home.raw_rows(name, identity_of_data)
    raw = [write_raw(files, shard, settings, raw_folder) for shard in plan_shards(files, settings)]
    folder = home.dataset(name, identity_of_data)
    listing = home.refused_rows(name, identity_of_data)
    return versions.make_version(
        name, identity_of_data, files, raw, settings, folder, with_ray=False, listing=listing, problem=problem
    )


def write_recipe(folder: Path, model: str = LINEAR, name: str = "plain", augmentation: str = "") -> str:
    """Write a recipe file whose `build_model` returns the expression `model`; returns the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text(_RECIPE.format(model=model, name=name, augmentation=augmentation))
    return str(file)


def job_for(home: Home, version: DatasetVersion, settings: Settings, recipe: str = "digits") -> TrainingJob:
    """Describe the training of `recipe` on `version`, as the train step would describe it."""
    _, ref = load(recipe)
    key = identity.run_key(identity.ingredients(ref, settings, version.fingerprint, {}))
    return make_job(key, home.run(ref.name, key), ref, settings, version)
