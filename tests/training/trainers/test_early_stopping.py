"""Trainings of boosted trees that end when the validation loss no longer improves."""

from pathlib import Path
from typing import Any

import pytest
import xgboost
from boosted_tables import boosted_job, bundled

from training.attempts.metrics import MetricsFile
from training.data.dataset import open_columns
from training.errors import SettingError
from training.records import DatasetVersion, TrainedModel
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.boosting.table_rows import rows_of_columns
from training.trainers.early_stopping import early_end, last_epoch
from training.trainers.ranks import Ranks
from training.trainers.rows import training_rows
from training.trainers.xgboost.boosting import build_boosting

ROUNDS, PATIENCE = 80, 5


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    return bundled(Home(tmp_path_factory.mktemp("table")), "regression")


@pytest.mark.parametrize(
    ("losses", "patience", "last"),
    [
        ([], 1, 9),
        ([3.0, 2.0, 1.0], 1, 9),
        ([3.0, 3.0], 1, 2),  # an equal loss is no improvement
        ([3.0, 2.0, 2.5, 2.4, 1.9], 3, 9),
        ([3.0, 2.0, 2.5, 2.4, 2.0], 3, 5),
        ([3.0, 2.0, 2.5, 2.4, 2.0, 1.0], 3, 5),  # later losses change nothing
        ([3.0, 4.0, 4.0, 4.0], None, 9),
        ([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], 8, 9),
    ],
)
def test_training_ends_after_so_many_epochs_without_a_lower_loss(
    losses: list[float], patience: int | None, last: int
) -> None:
    assert last_epoch(losses, patience, 9) == last


def test_the_first_of_equal_losses_is_the_improvement() -> None:
    said = early_end([3.0, 1.0, 2.0, 1.0], "round")
    assert said == "stopped at round 4: the validation loss had not improved since round 2"


def history(trained: TrainedModel) -> list[dict[str, Any]]:
    return [row.model_dump(exclude={"images_per_s"}) for row in trained.history]


@pytest.mark.parametrize("trainer", ["XGBoost", "LightGBM"])
def test_a_training_that_ends_early_is_the_beginning_of_the_whole(
    home: Home, table: DatasetVersion, trainer: str, caplog: pytest.LogCaptureFixture
) -> None:
    def job(**training: Any) -> Any:
        return boosted_job(home, table, trainer=trainer, training={"rounds": ROUNDS} | training)

    whole = launch(job())
    best = min(whole.history, key=lambda row: row.validation_loss).epoch
    end = last_epoch([row.validation_loss for row in whole.history], PATIENCE, ROUNDS)
    assert (whole.stopped, len(whole.history)) == ("", ROUNDS)
    assert PATIENCE < end < ROUNDS
    chosen = job(early_stopping_rounds=PATIENCE)
    with caplog.at_level("INFO", "evergreen.loop"):
        stopped = launch(chosen)
    said = f"stopped at round {end}: the validation loss had not improved since round {end - PATIENCE}"
    assert (stopped.steps, stopped.stopped, stopped.selected_epoch) == (end, said, end - PATIENCE)
    assert f"training {said}" in caplog.text
    assert history(stopped) == history(whole)[:end]
    points = MetricsFile(chosen.paths.metrics).read()
    assert [point.step for point in points] == list(range(1, end + 1))
    assert [point.total_steps for point in points] == [ROUNDS] * (end - 1) + [end]
    if best <= end:
        assert stopped.weights_digest == whole.weights_digest
    patient = launch(job(early_stopping_rounds=ROUNDS))
    assert (patient.stopped, patient.weights_digest) == ("", whole.weights_digest)


def test_xgboost_itself_ends_at_the_same_round(home: Home, table: DatasetVersion) -> None:
    sections = {"rounds": ROUNDS, "early_stopping_rounds": PATIENCE}
    job = boosted_job(home, table, training=sections)
    ours = launch(job)
    ranks, columns = Ranks.of_this_process(use_gpu=False), open_columns(table, "train")
    mine = rows_of_columns(columns, *training_rows(columns, job.settings), ranks)
    rows = build_boosting(table, job.settings, mine, ranks)
    theirs = xgboost.train(
        rows.parameters,
        rows.learn,
        ROUNDS,
        evals=[(rows.validate, "validation")],
        early_stopping_rounds=PATIENCE,
        verbose_eval=False,
    )
    assert theirs.num_boosted_rounds() == len(ours.history) < ROUNDS
    assert theirs.best_iteration + 1 == ours.selected_epoch
    last = launch(boosted_job(home, table, training={"select": "last"} | sections))
    kept = xgboost.Booster(model_file=bytearray(Path(last.weights).read_bytes()))
    assert (last.selected_epoch, kept.num_boosted_rounds()) == (len(ours.history),) * 2
    assert kept.get_dump() == theirs.get_dump()


def test_validation_rows_are_needed(home: Home, table: DatasetVersion) -> None:
    job = boosted_job(home, table, training={"early_stopping_rounds": 3}, data={"validation_share": 1e-9})
    with pytest.raises(SettingError, match=r"data\.validation_share: .* 0 to validate on"):
        launch(job)
