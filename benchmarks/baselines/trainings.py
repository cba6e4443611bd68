"""Trainings as a user starts them: a dataset version, a recipe, settings, `training.supervision.launch`."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.baselines.images import idx_folder
from training import identity
from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile, Point
from training.data import dataset
from training.data.preparation.prepare import make_version, plan_shards, write_raw
from training.data.sources.locate import open_path
from training.recipe import load
from training.records import DatasetVersion, TrainedModel
from training.settings.overrides import resolve
from training.settings.schema import Settings
from training.storage.paths import Home, RunPaths
from training.supervision.launch import make_job

RECIPES = Path(__file__).parents[1] / "recipes"


def recipe_file(name: str) -> str:
    """Path of one of the benchmarks' recipe files."""
    return str(RECIPES / f"{name}.py")


def version_of(data: Path, rows: int, test_rows: int = 1000) -> DatasetVersion:
    """A dataset version of `rows` training rows; the first call prepares and unpacks it."""
    home = Home(data / f"home-{rows}-{test_rows}")
    settings = Settings.model_validate({"data": {"path": str(idx_folder(data, rows, test_rows))}})
    version = prepare(home, settings)
    for split in ("train", "test"):
        dataset.open_columns(version, split)
    return version


def prepare(home: Home, settings: Settings, name: str = "bench") -> DatasetVersion:
    """Run the steps download, parquet and transform in this process; an existing dataset version is reused."""
    source = load(recipe_file("linear"))[0].source
    files = open_path(Path(str(settings.data.path)), home.sources, (), source).fetch(home.sources / name)
    fingerprint = dataset.fingerprint(files, settings.data)
    if (version := dataset.find(home, name, fingerprint)) is not None:
        return version
    raw_folder = home.raw_rows(name, fingerprint)
    with ThreadPoolExecutor() as pool:  # as Prefect's tasks run without Ray
        shards = plan_shards(files, settings.data)
        raw = list(pool.map(lambda shard: write_raw(files, shard, settings.data, raw_folder), shards))
    target = home.dataset(name, fingerprint)
    return make_version(name, fingerprint, files, raw, settings.data, target, with_ray=False)


def job_of(home: Path, version: DatasetVersion, recipe: str, overrides: dict[str, Any]) -> TrainingJob:
    """Describe a training of a benchmark recipe, or of any recipe file, as the train step does."""
    chosen, ref = load(recipe if recipe.endswith(".py") else recipe_file(recipe))
    base = {"scaling": {"use_gpu": "no"}, "tracking": {"system_metrics": False}}
    settings = resolve(chosen.settings, base, overrides)
    key = identity.run_key(identity.ingredients(ref, settings, version.fingerprint, {}))
    return make_job(key, Home(home).run(ref.name, key), ref, settings, version)


def steady_rows_per_s(paths: RunPaths, trained: TrainedModel) -> float:
    """Training rows per second from the end of the first epoch to the end of the last epoch, validation included.

    The first epoch is warm-up: it allocates memory, fills caches and starts threads.
    """
    ends = {
        point.step: point for point in MetricsFile(paths.metrics).read() if "validation/loss" in point.values
    }
    first, last = trained.history[0], trained.history[-1]
    rows = sum(epoch.rows for epoch in trained.history[1:])
    return rows / (ends[last.step].at - ends[first.step].at)


def first_point(paths: RunPaths, after_step: int, since: float) -> Point | None:
    """The first metric point after step `after_step` and after time `since`, or None."""
    points = MetricsFile(paths.metrics).read()
    return next((point for point in points if point.step > after_step and point.at > since), None)


def what_was_done(trained: TrainedModel) -> dict[str, Any]:
    """The facts by which two trainings are compared."""
    last = trained.history[-1]
    return {
        "rows": [epoch.rows for epoch in trained.history],
        "checksums": [epoch.checksum for epoch in trained.history],
        "loss": last.validation_loss,
        "weights": trained.weights_digest,
    }
