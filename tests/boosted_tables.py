"""Trainings of XGBoost on small real tables, and on a table with number, category and missing values."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
from small_runs import prepared

from training import identity
from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile
from training.data.dataset import open_columns
from training.data.sources.sklearn_tables import BundledTable
from training.data.sources.table import Table
from training.recipe import load
from training.records import DatasetVersion, ProblemName, TrainedModel
from training.settings.overrides import resolve
from training.storage.paths import Home
from training.supervision.launch import launch, make_job

if TYPE_CHECKING:
    from mlflow import MlflowClient

SAMPLED = {"subsample": 0.7, "colsample_bytree": 0.7}
_RECIPE = """
from evergreen import BundledTable, {problem}, Recipe, {trainer}

recipe = Recipe("boosted", "for a test", BundledTable("{table}"), problem={problem}(), trainer={trainer}())
"""
TABLES: dict[ProblemName, str] = {"classification": "breast_cancer", "regression": "diabetes"}


def bundled(home: Home, problem: ProblemName) -> DatasetVersion:
    """The dataset version of a table of scikit-learn: 569 rows for classification, 442 for regression."""
    return prepared(home, BundledTable(TABLES[problem]), TABLES[problem], problem=problem)


def mixed_table(home: Home, folder: Path, rows: int) -> DatasetVersion:
    """A dataset version of random rows with three classes: numbers, some of them missing, and a category."""
    random = np.random.default_rng(0)
    numbers = random.normal(size=(rows, 3))
    kinds = random.integers(0, 4, rows)
    numbers[::7, 1] = np.nan
    score = numbers[:, 0] + np.nan_to_num(numbers[:, 1]) * numbers[:, 2] + (kinds == 2)
    labels = (score > 0).astype(int) + (score > 1)
    columns: dict[str, Any] = {f"n{at}": pa.array(numbers[:, at], from_pandas=True) for at in range(3)}
    columns |= {"kind": [f"kind {kind}" for kind in kinds], "label": [f"class {label}" for label in labels]}
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.csv.write_csv(pa.table(columns), folder / "mixed.csv")
    return prepared(home, Table(folder / "mixed.csv", "label"), "mixed")


def boosted_job(
    home: Home,
    version: DatasetVersion,
    workers: int = 0,
    name: str = "",
    trainer: str = "XGBoost",
    **sections: Any,
) -> TrainingJob:
    """Describe a training of 35 rounds in this process.

    `trainer` is the class of the trainer in the recipe; `sections` override settings, `name` sets another run apart.
    """
    recipe = home.root / "boosted.py"
    recipe.parent.mkdir(parents=True, exist_ok=True)
    kind = "Regression" if version.problem == "regression" else "Classification"
    recipe.write_text(_RECIPE.format(problem=kind, table=TABLES[version.problem], trainer=trainer))
    loaded, ref = load(str(recipe))
    base = {
        "training": {"rounds": 35, "max_depth": 3, "learning_rate": 0.2},
        "scaling": {"num_workers": workers, "use_gpu": "no"},
        "tracking": {"system_metrics": False},
    }
    settings = resolve(loaded.settings, base, sections)
    key = identity.run_key(identity.ingredients(ref, settings, version.fingerprint, {}, name or None))
    return make_job(key, home.run(ref.name, key), ref, settings, version)


def outcome(job: TrainingJob, trained: TrainedModel) -> tuple[Any, ...]:
    """What an interruption may not change: digest, history and metric points, all without times."""
    timed = {"images_per_s"}
    history = [row.model_dump(exclude=timed) for row in trained.history]
    points = [
        (point.step, {name: value for name, value in point.values.items() if "speed" not in name})
        for point in MetricsFile(job.paths.metrics).read()
    ]
    return trained.weights_digest, trained.selected_epoch, history, points


class RegisteredTrees(NamedTuple):
    """A model of XGBoost that is version 1 of the registered model `boosted`; `files` is its folder in the store."""

    home: Home
    client: "MlflowClient"
    files: Path
    version: DatasetVersion
    trained: TrainedModel


def registered_trees(
    home: Home, version: DatasetVersion, sections: Mapping[str, Any] = MappingProxyType({}), **training: Any
) -> RegisteredTrees:
    """Train on `version`, and register the model in the home's own store, tagged with its digest."""
    from tasks.model_formats.base import format_name, format_of, metadata_of
    from tasks.registry.safe_loading import FILE_TAG, digest_of_logged
    from tasks.trackers.mlflow_run import connect

    job = boosted_job(home, version, training=training, **sections)
    trained = launch(job)
    client = connect(None, home)
    artifacts = home.mlflow_artifacts / "boosted"
    if (experiment := client.get_experiment_by_name("boosted")) is None:
        client.create_registered_model("boosted")
        client.create_experiment("boosted", artifact_location=artifacts.as_uri())
        experiment = client.get_experiment_by_name("boosted")
    run = client.create_run(experiment.experiment_id).info.run_id
    recipe, model_format = load(job.recipe.path)[0], format_of(job.settings)
    example = np.array(open_columns(version, "test").inputs[:4])
    said = metadata_of(version, format_name(job.settings))
    uri = model_format.log_model(run, recipe, version, trained, example, said)
    logged = uri.removeprefix("models:/")
    tags = {FILE_TAG: digest_of_logged(client, logged, model_format.MODEL_FILE)}
    client.create_model_version("boosted", uri, run, model_id=logged, tags=tags)
    (file,) = artifacts.rglob(model_format.MODEL_FILE.name)
    return RegisteredTrees(home, client, file.parent, version, trained)
