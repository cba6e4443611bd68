"""Metrics of TorchMetrics on the validation rows: the value over all workers is that of one process."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from keras_runs import write_keras
from lightning_runs import write_lightning
from network_runs import small_job
from own_loops import write_loop
from sklearn.metrics import f1_score, roc_auc_score
from small_runs import prepared, write_recipe

from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile
from training.data.dataset import open_columns
from training.data.sources.sklearn_tables import BundledTable
from training.errors import TrainingError
from training.libraries import library_versions
from training.recipe import load, reload
from training.records import DatasetVersion, TrainedModel
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.base import inspection_of
from training.trainers.rows import training_rows

pytest.importorskip("torchmetrics", reason="install the extras by: make setup EXTRAS=all")
pytestmark = pytest.mark.frameworks

# One metric whose state is summed over the workers, and one whose state is every row.
METRICS = """

def build_f1(outputs):
    from torchmetrics.classification import MulticlassF1Score
    return MulticlassF1Score(outputs, average="macro")


def build_auroc(outputs):
    from torchmetrics.classification import MulticlassAUROC
    return MulticlassAUROC(outputs)

recipe = Recipe(metrics={"f1": build_f1, "auroc": build_auroc}, name="""


def with_metrics(recipe: str, metrics: str = METRICS) -> str:
    """Add metrics to the recipe in a file; returns the file's path."""
    before, after = Path(recipe).read_text().split("\nrecipe = Recipe(", 1)
    after = after.replace('"for a test", ', 'summary="for a test", source=', 1)
    Path(recipe).write_text(before + metrics + after.lstrip())
    return recipe


def write(trainer: str, folder: Path) -> str:
    writers = {
        "torch": write_recipe,
        "lightning": write_lightning,
        "accelerate": write_loop,
        "keras": write_keras,
    }
    if find_spec(trainer) is None:
        pytest.skip("install the extras by: make setup EXTRAS=all")
    return with_metrics(writers[trainer](folder))  # type: ignore[operator]


def computed_again(job: TrainingJob, trained: TrainedModel) -> dict[str, float]:
    """The metrics of the finished model on the validation rows, by scikit-learn."""
    columns = open_columns(job.dataset, "train")
    rows = training_rows(columns, job.settings)[1]
    predict = inspection_of(job.settings.trainer).predictor(
        reload(job.recipe, job.paths.recipe), job.dataset, trained
    )
    predictions, truth = predict(columns.inputs[rows]), columns.targets[rows]
    return {
        "validation/f1": f1_score(truth, predictions.argmax(1), average="macro"),
        "validation/auroc": float(roc_auc_score(truth, predictions, multi_class="ovr", average="macro")),
    }


def in_points(job: TrainingJob) -> list[dict[str, float]]:
    """The recipe's metrics of each metric point that has them."""
    points = MetricsFile(job.paths.metrics).read()
    selected = [
        {name: value for name, value in point.values.items() if name in ("validation/f1", "validation/auroc")}
        for point in points
    ]
    return [values for values in selected if values]


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("trainer", ["torch", "lightning", "accelerate", "keras"])
def test_two_workers_give_the_value_over_all_rows(
    trainer: str, home: Home, tmp_path: Path, digits_version: DatasetVersion
) -> None:
    job = small_job(
        home,
        digits_version,
        write(trainer, tmp_path / "recipe"),
        workers=2,
        training={"epochs": 2, "select": "last"},
        data={"validation_share": 0.1003},
    )
    trained = launch(job)
    assert trained.world_size == 2
    points = in_points(job)
    assert len(points) == 2
    assert points[-1] == pytest.approx(computed_again(job, trained), abs=1e-5)
    assert points[-1]["validation/f1"] > 0.2  # 0.02 for one class alone


@pytest.mark.parametrize("shards", [None, 4])
def test_metrics_change_no_weight(
    shards: int | None, home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    own = {"training": {"epochs": 2, "select": "last", "virtual_shards": shards}}
    job = small_job(home, small_version, write("torch", tmp_path / "recipe"), **own)
    trained = launch(job)
    assert in_points(job)[-1] == pytest.approx(computed_again(job, trained), abs=1e-5)
    plain = small_job(Home(tmp_path / "plain"), small_version, write_recipe(tmp_path / "other"), **own)
    assert launch(plain).weights_digest == trained.weights_digest


def test_metrics_of_a_regression_are_in_the_unit_of_the_target(home: Home, tmp_path: Path) -> None:
    version = prepared(home, BundledTable("diabetes"), "diabetes", problem="regression")
    recipe = tmp_path / "numbers.py"
    recipe.write_text(
        "from evergreen import BundledTable, Recipe, Regression\n\n"
        "def build_model(shape, outputs):\n    from torch import nn\n    return nn.Linear(shape[0], outputs)\n\n"
        "def build_error(outputs):\n"
        "    from torchmetrics.regression import MeanSquaredError\n"
        "    return MeanSquaredError(squared=False)\n\n"
        "recipe = Recipe(name='numbers', source=BundledTable('diabetes'), problem=Regression(),\n"
        "    build_model=build_model, metrics={'root_error': build_error})\n"
    )
    job = small_job(home, version, str(recipe))
    trained = launch(job)
    point = MetricsFile(job.paths.metrics).read()[-1].values
    assert point["validation/root_error"] == pytest.approx(trained.history[-1].validation_score, rel=1e-5)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("MulticlassF1Score(outputs, average=None)", r"metric f1 gives no single number but a Tensor\(10,\)"),
        ("BinaryF1Score()", "metric f1 refuses predictions of shape"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused_with_its_name(
    metric: str, message: str, home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    text = METRICS.replace('MulticlassF1Score(outputs, average="macro")', metric).replace(
        "import MulticlassF1Score", "import BinaryF1Score, MulticlassF1Score"
    )
    recipe = with_metrics(write_recipe(tmp_path / "recipe"), text)
    with pytest.raises(TrainingError, match=message):
        launch(small_job(home, small_version, recipe, training={"epochs": 1}))


def test_the_library_s_version_and_the_metrics_code_are_in_the_run_key(tmp_path: Path) -> None:
    before = load(write_recipe(tmp_path / "plain"))[1]
    with_f1 = load(write("torch", tmp_path / "measured"))[1]
    assert "torchmetrics" not in library_versions(before)
    assert "torchmetrics" in library_versions(with_f1)
    assert before.digest != with_f1.digest


def test_a_value_that_is_not_finite_is_left_out(small_version: DatasetVersion) -> None:
    import torch
    from torchmetrics import MeanMetric

    from training.recipe_metrics import RecipeMetrics

    class Never(MeanMetric):
        def update(self, *_: torch.Tensor) -> None:
            super().update(torch.tensor(float("inf")))

    metrics = RecipeMetrics("x", {"never": lambda _: Never()}, small_version, "cpu")
    assert metrics.of_rows(np.full((3, 10), 0.1, np.float32), np.arange(3)) == {}
