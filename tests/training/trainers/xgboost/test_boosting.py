"""A training of XGBoost in this process: its model, its metrics, its limits."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import xgboost
from boosted_tables import SAMPLED, boosted_job, bundled, mixed_table

from training.attempts.metrics import MetricsFile
from training.data.dataset import open_columns
from training.errors import SettingError, TrainingError
from training.records import DatasetVersion, TableColumn, TableSchema
from training.settings.schema import ScalingSettings, Settings
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.boosting.rounds import ROUNDS_PER_BLOCK, block_end
from training.trainers.boosting.table_rows import rows_of_columns
from training.trainers.ranks import Ranks
from training.trainers.rows import training_rows
from training.trainers.xgboost import trainer
from training.trainers.xgboost.boosting import build_boosting, first_rounds
from training.trainers.xgboost.settings import XGBoostSettings


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DatasetVersion]:
    home = Home(tmp_path_factory.mktemp("tables"))
    return {
        "classification": bundled(home, "classification"),
        "regression": bundled(home, "regression"),
        "mixed": mixed_table(home, home.root / "files", 600),
    }


def losses(version: DatasetVersion, predictions: Any, targets: Any) -> tuple[float, float]:
    """Loss and metric of predictions, computed without XGBoost."""
    if version.problem == "regression":
        squared = float(np.mean((predictions.astype(float) - targets) ** 2))
        return squared, float(np.sqrt(squared))
    truth = predictions[np.arange(len(targets)), targets].astype(float)
    return float(-np.log(truth).mean()), float((predictions.argmax(1) == targets).mean())


@pytest.mark.parametrize("name", ["classification", "regression", "mixed"])
def test_the_history_is_that_of_the_model_that_is_kept(
    home: Home, tables: dict[str, DatasetVersion], name: str
) -> None:
    version = tables[name]
    job = boosted_job(home, version, training=SAMPLED)
    trained = launch(job)
    content = Path(trained.weights).read_bytes()
    assert Path(trained.weights) == job.paths.model / "model.ubj"
    assert trained.weights_digest == hashlib.sha256(content).hexdigest()
    assert (
        [row.epoch for row in trained.history] == [row.step for row in trained.history] == list(range(1, 36))
    )
    best = min(trained.history, key=lambda row: row.validation_loss)
    assert trained.selected() == best
    model = xgboost.Booster(model_file=bytearray(content))
    assert model.num_boosted_rounds() == best.epoch
    columns = open_columns(version, "train")
    learn, validate = training_rows(columns, job.settings)
    for rows, loss, metric in (
        (learn, best.train_loss, best.train_score),
        (validate, best.validation_loss, best.validation_score),
    ):
        predictions = model.inplace_predict(columns.inputs[rows])
        expected = losses(version, predictions, columns.targets[rows])
        assert (loss, metric) == pytest.approx(expected, rel=1e-5)
    assert best.train_loss < trained.history[0].train_loss
    assert {row.rows for row in trained.history} == {len(learn)}


def test_all_rounds_are_kept_where_the_last_is_selected(
    home: Home, tables: dict[str, DatasetVersion]
) -> None:
    version = tables["regression"]
    best = launch(boosted_job(home, version))
    last = launch(boosted_job(home, version, training={"select": "last"}))
    assert best.selected_epoch < last.selected_epoch == 35
    content = Path(last.weights).read_bytes()
    assert first_rounds(content, 35) == content
    assert first_rounds(content, best.selected_epoch) == Path(best.weights).read_bytes()


def test_the_seed_decides_about_the_sampled_rows_alone(home: Home, tables: dict[str, DatasetVersion]) -> None:
    version = tables["classification"]

    def digest(seed: int, name: str, **training: Any) -> str:
        return launch(boosted_job(home, version, name=name, seed=seed, training=training)).weights_digest

    assert digest(1, "a", **SAMPLED) == digest(1, "b", **SAMPLED) != digest(2, "a", **SAMPLED)
    assert digest(1, "a") == digest(2, "a")


def test_points_are_written_as_often_as_the_settings_say(
    home: Home, tables: dict[str, DatasetVersion]
) -> None:
    job = boosted_job(home, tables["regression"], tracking={"log_every_steps": 8})
    trained = launch(job)
    points = MetricsFile(job.paths.metrics).read()
    assert [point.step for point in points] == [8, 16, 24, 32, 35]
    row = trained.history[15]
    assert points[1].values["train/rmse"] == row.train_score
    assert (
        points[1].values["validation/loss"] == row.validation_loss == pytest.approx(row.validation_score**2)
    )


@pytest.mark.parametrize("start", [0, 3, ROUNDS_PER_BLOCK - 1, ROUNDS_PER_BLOCK])
def test_blocks_cover_all_rounds_once(start: int) -> None:
    assert block_end(start, 25) in (10, 20)
    assert start < block_end(start, 25) <= start + ROUNDS_PER_BLOCK
    assert block_end(20, 25) == 25


def test_each_worker_needs_a_row(home: Home, tables: dict[str, DatasetVersion]) -> None:
    job = boosted_job(home, tables["regression"])
    columns = open_columns(job.dataset, "train")
    learn, validate = training_rows(columns, job.settings)
    ranks = Ranks(0, len(validate) + 1, torch.device("cpu"), distributed=True)
    with pytest.raises(TrainingError, match=rf"scaling\.num_workers: .* {len(validate)} rows"):
        rows_of_columns(columns, learn, validate, ranks)


def test_a_category_of_the_validation_rows_alone_is_not_taken_for_another(home: Home, tmp_path: Path) -> None:
    """The bins of the rows to learn from have no place for it."""
    version = mixed_table(home, tmp_path / "files", 600)
    columns = open_columns(version, "train")
    inputs, kind = np.array(columns.inputs), 3
    learn, validate = training_rows(columns, boosted_job(home, version).settings)
    inputs[learn, kind] = np.minimum(inputs[learn, kind], 2)
    inputs[validate, kind] = 3
    changed = type(columns)(inputs, columns.targets, columns.digests)
    job = boosted_job(home, version)
    ranks = Ranks.of_this_process(use_gpu=False)
    rows = rows_of_columns(changed, learn, validate, ranks)
    boosting = build_boosting(version, job.settings, rows, ranks)
    model = boosting.model(b"", 0)
    for number in range(5):
        boosting.advance(model, number)
        evaluation = boosting.combined([boosting.measure(model, number)])
    expected = losses(version, model.inplace_predict(inputs[validate]), columns.targets[validate])
    assert (evaluation.validation_loss, evaluation.validation_score) == pytest.approx(expected, rel=1e-5)


def test_images_are_refused(home: Home, small_version: DatasetVersion) -> None:
    with pytest.raises(SettingError, match="trainer xgboost needs a table"):
        boosted_job(home, small_version)


@pytest.mark.parametrize("name", ["price [EUR]", "a<b"])
def test_a_name_that_xgboost_does_not_take_is_named(tables: dict[str, DatasetVersion], name: str) -> None:
    table = TableSchema(target="y", columns=(TableColumn(name=name, kind="number"),))
    with pytest.raises(SettingError, match="rename the column"):
        trainer.check_dataset(Settings(), tables["regression"].model_copy(update={"table": table}))
    trainer.check_dataset(Settings(), tables["regression"])


def test_the_command_that_installs_xgboost_is_named(
    home: Home, tables: dict[str, DatasetVersion], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "find_spec", lambda _name: None)
    with pytest.raises(SettingError, match=r"make setup EXTRAS=all"):
        launch(boosted_job(home, tables["regression"]))


def test_planning_imports_no_xgboost() -> None:
    program = (
        "import sys; from training.trainers.base import trainer_named; "
        "from tasks.model_formats.base import format_named; "
        "trainer_named('xgboost'); format_named('xgboost_ubj'); sys.exit('xgboost' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_gpus_are_not_used_by_an_xgboost_without_cuda(tables: dict[str, DatasetVersion]) -> None:
    settings = Settings(training=XGBoostSettings(), scaling=ScalingSettings(use_gpu="yes"))
    with patch.object(xgboost, "build_info", return_value={"USE_CUDA": False}):
        assert not settings.training.can_use_gpus
        with pytest.raises(
            SettingError, match=r"scaling\.use_gpu: this XGBoost was built without CUDA.*use_gpu=no"
        ):
            trainer.check_dataset(settings, tables["regression"])
    with patch.object(xgboost, "build_info", return_value={"USE_CUDA": True}):
        trainer.check_dataset(settings, tables["regression"])
