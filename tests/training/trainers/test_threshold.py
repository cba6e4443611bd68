"""The threshold that a training chooses on its validation rows, and records with the model."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from boosted_tables import boosted_job
from sklearn.metrics import f1_score
from small_runs import job_for, prepared

from training.attempts.job import TrainingJob
from training.data.dataset import open_columns
from training.data.sources.table import Table
from training.problems.thresholds import predicted_classes
from training.recipe import load, reload
from training.records import DatasetVersion
from training.settings.overrides import resolve
from training.storage.paths import Home
from training.supervision.launch import finished, launch
from training.trainers.base import inspection_of
from training.trainers.rows import training_rows

TORCH = """
from evergreen import Classification, Recipe, Table, Torch

def build_model(shape, outputs):
    from torch import nn
    return nn.Linear(shape[0], outputs)

recipe = Recipe("rare", "for a test", Table("rare.csv", "ill"), problem=Classification(), trainer=Torch(build_model))
"""


@pytest.fixture
def rare(home: Home, tmp_path: Path) -> DatasetVersion:
    """600 rows of which about one in ten is ill, with weights."""
    random = np.random.default_rng(0)
    ill = random.random(600) < 0.1
    columns = {f"n{at}": (random.normal(size=600) + 1.2 * ill).round(3) for at in range(3)}
    columns |= {"ill": np.where(ill, "a yes", "no"), "w": random.integers(1, 4, 600).astype(float)}
    pyarrow.csv.write_csv(pa.table(columns), tmp_path / "rare.csv")
    data = {"validation_share": 0.4}
    return prepared(home, Table(tmp_path / "rare.csv", "ill", weight="w"), "rare", data)


def job(home: Home, version: DatasetVersion, trainer: str, threshold: object) -> TrainingJob:
    data = {"validation_share": 0.4}
    if trainer == "XGBoost":
        return boosted_job(home, version, training={"rounds": 8, "threshold": threshold}, data=data)
    file = home.root / "rare.py"
    file.write_text(TORCH)
    base = {"scaling": {"num_workers": 0, "use_gpu": "no"}, "tracking": {"system_metrics": False}}
    own = {"training": {"epochs": 2, "threshold": threshold}, "data": data}
    return job_for(home, version, resolve(load(str(file))[0].settings, base, own), recipe=str(file))


@pytest.mark.parametrize("trainer", ["XGBoost", "torch"])
def test_the_threshold_is_the_best_on_the_validation_rows(
    home: Home, rare: DatasetVersion, trainer: str
) -> None:
    this = job(home, rare, trainer, "f1")
    trained = launch(this)
    assert trained.threshold is not None
    recorded = finished(this.paths, this.run_key)
    assert recorded is not None
    assert recorded.threshold == trained.threshold
    columns = open_columns(rare, "train")
    _, rows = training_rows(columns, this.settings)
    predict = inspection_of(this.settings.trainer).predictor(
        reload(this.recipe, this.paths.recipe), rare, trained
    )
    given, labels = predict(columns.inputs[rows]), columns.targets[rows]
    assert columns.weights is not None

    def f1(threshold: float | None) -> float:
        answers = predicted_classes(given, threshold)
        # "a yes" is the first class, and the rarer one.
        return float(f1_score(labels, answers, pos_label=0, sample_weight=columns.weights[rows]))  # type: ignore[index]

    best = max(f1(one) for one in [*np.linspace(0.001, 0.999, 999), *(given[:, 1] + 1e-6)])
    assert f1(trained.threshold) == pytest.approx(best)
    assert best > f1(None)
    other = launch(job(home, rare, trainer, 0.25))
    assert other.threshold == 0.25
    assert other.weights_digest == trained.weights_digest
