"""The start of a block of boosting rounds: a model that grows on has the state of a model that was just loaded."""

import logging
import re
from typing import Any

import lightgbm
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from boosted_tables import boosted_job, bundled, mixed_table, outcome
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error, root_mean_squared_error
from small_runs import prepared

from training.attempts.metrics import MetricsFile
from training.data.dataset import open_columns
from training.data.sources.table import Table
from training.records import DatasetVersion, ProblemName
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.boosting import loop, results
from training.trainers.lightgbm.boosting import LightGBMRounds
from training.trainers.ranks import Ranks
from training.trainers.rows import training_rows
from training.trainers.xgboost.boosting import XGBoostRounds

ROUNDS = {"XGBoost": XGBoostRounds, "LightGBM": LightGBMRounds}
SAMPLINGS: dict[str, dict[str, dict[str, float]]] = {
    "XGBoost": {
        "all": {},
        "rows": {"subsample": 0.7},
        "columns": {"colsample_bytree": 0.7},
        "both": {"subsample": 0.4, "colsample_bytree": 0.4},
    },
    "LightGBM": {
        "all": {},
        "rows": {"bagging_fraction": 0.7},
        "columns": {"feature_fraction": 0.7},
        "both": {"bagging_fraction": 0.4, "feature_fraction": 0.4},
    },
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DatasetVersion]:
    home = Home(tmp_path_factory.mktemp("tables"))
    return {
        "two classes": bundled(home, "classification"),
        "numbers": bundled(home, "regression"),
        "three classes": mixed_table(home, home.root / "files", 600),
        "rare flags": rare_flags(home),
        "ended": ended_table(home),
    }


def rare_flags(home: Home) -> DatasetVersion:
    """Flags of which a row has one, but one row has two: LightGBM would bundle the columns, and lose one of the two."""
    random = np.random.default_rng(0)
    flag, number = random.integers(0, 10, 20_000), random.standard_normal(20_000)
    flags = (flag[:, None] == np.arange(6)).astype(np.float64)
    flags[np.flatnonzero(flag == 0)[0], 1] = 1
    target = flags @ np.arange(6.0, 0.0, -1.0) + 0.1 * number
    columns = {f"f{at}": flags[:, at] for at in range(6)} | {"number": number, "y": target}
    return written(home, "flags", columns, "regression")


def ended_table(home: Home) -> DatasetVersion:
    """Nine classes that a number tells apart: after a few rounds, no split reduces the loss."""
    number = np.arange(900)
    columns = {"x": number % 9, "y": [f"class {value % 9}" for value in number], "z": number / 7}
    return written(home, "ended", columns, "classification")


def written(home: Home, name: str, columns: dict[str, Any], problem: ProblemName) -> DatasetVersion:
    """The dataset version of a table with the target `y`."""
    file = home.root / "files" / f"{name}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)
    return prepared(home, Table(file, "y"), name, problem=problem)


@pytest.mark.parametrize("table", ["two classes", "numbers", "three classes"])
def test_the_history_of_lightgbm_is_that_of_its_model(
    home: Home, tables: dict[str, DatasetVersion], table: str
) -> None:
    """XGBoost's is compared in `xgboost/test_boosting.py`."""
    version = tables[table]
    training = SAMPLINGS["LightGBM"]["both"] | {"select": "last"}
    job = boosted_job(home, version, trainer="LightGBM", training=training)
    trained = launch(job)
    model = lightgbm.Booster(model_file=trained.weights)
    columns = open_columns(version, "train")
    last = trained.history[-1]
    for rows, loss, score in zip(
        training_rows(columns, job.settings),
        (last.train_loss, last.validation_loss),
        (last.train_score, last.validation_score),
        strict=True,
    ):
        targets, predicted = columns.targets[rows], np.asarray(model.predict(np.array(columns.inputs[rows])))
        if version.problem == "regression":
            expected = mean_squared_error(targets, predicted), root_mean_squared_error(targets, predicted)
        else:
            labels = range(predicted.shape[1])
            expected = (
                log_loss(targets, predicted, labels=labels),
                accuracy_score(targets, predicted.argmax(1)),
            )
        assert (loss, score) == pytest.approx(expected, rel=1e-9)


def loaded_again(self: Any, model: Any, round_number: int) -> Any:
    """The model at the start of a block, as a resumed training has it."""
    return self.model(self.content(model), round_number)


@pytest.mark.extended
@pytest.mark.parametrize("table", ["two classes", "numbers", "three classes", "rare flags"])
@pytest.mark.parametrize("sampling", ["all", "rows", "columns", "both"])
@pytest.mark.parametrize("trainer", ["XGBoost", "LightGBM"])
def test_a_model_grows_on_as_if_it_were_loaded(
    home: Home,
    tables: dict[str, DatasetVersion],
    trainer: str,
    sampling: str,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [
        boosted_job(
            home,
            tables[table],
            name=name,
            trainer=trainer,
            training=SAMPLINGS[trainer][sampling],
            checkpoint={"replay": False},
        )
        for name in ("grown", "loaded")
    ]
    grown = outcome(jobs[0], launch(jobs[0]))
    monkeypatch.setattr(ROUNDS[trainer], "next_block", loaded_again)
    assert outcome(jobs[1], launch(jobs[1])) == grown


def test_a_model_that_ended_has_the_loss_of_a_loaded_one(
    home: Home, tables: dict[str, DatasetVersion], caplog: pytest.LogCaptureFixture
) -> None:
    """With nine classes, LightGBM and NumPy add the exponentials of a row in another order."""
    training = {"learning_rate": 1.0, "min_gain_to_split": 1e-3, "rounds": 25}
    job = boosted_job(
        home, tables["ended"], trainer="LightGBM", training=training, checkpoint={"every_s": 0.01}
    )
    with caplog.at_level(logging.WARNING):
        trained = launch(job)
    assert re.search(r"round [2-9] found no split", caplog.text)
    assert trained.reproducible is True, trained.reproducible_reason


@pytest.mark.parametrize("trainer", ["XGBoost", "LightGBM"])
def test_the_bytes_of_a_model_are_made_for_checkpoints_only(
    home: Home, tables: dict[str, DatasetVersion], trainer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their size grows with the rounds, so bytes after each block would take a time that grows with the square."""
    made, saved = list[int](), list[int]()
    content, save = ROUNDS[trainer].content, loop.Loop._save

    def counted(self: Any, model: Any) -> bytes:
        made.append(1)
        return content(self, model)

    def noted(self: Any, model: Any, rounds: int) -> None:
        saved.append(rounds)
        save(self, model, rounds)

    monkeypatch.setattr(ROUNDS[trainer], "content", counted)
    monkeypatch.setattr(loop.Loop, "_save", noted)
    settings = {"every_s": 3600, "replay": False}
    launch(boosted_job(home, tables["numbers"], trainer=trainer, checkpoint=settings))
    assert saved == [35]
    assert len(made) == 2  # the checkpoint at the end, and the finished model


@pytest.mark.parametrize(
    ("trainer", "training"), [("XGBoost", {}), ("LightGBM", {}), ("LightGBM", {"early_stopping_rounds": 3})]
)
def test_how_many_rounds_are_exchanged_together_changes_no_result(
    home: Home,
    tables: dict[str, DatasetVersion],
    trainer: str,
    training: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts, exchange = list[int](), results.Results.exchange

    def counted(self: Any, request: int) -> results.Exchange:
        done = exchange(self, request)
        counts.append(len(done.results))
        return done

    monkeypatch.setattr(results.Results, "exchange", counted)
    settings = {"every_s": 3600, "replay": False}
    outcomes, together = [], []
    for name, number in (("each", 1), ("many", 32)):
        monkeypatch.setattr(results, "rounds_together", lambda *_, chosen=number: chosen)
        job = boosted_job(
            home, tables["numbers"], name=name, trainer=trainer, training=training, checkpoint=settings
        )
        outcomes.append(outcome(job, launch(job)))
        written_at = [point.at for point in MetricsFile(job.paths.metrics).read()]
        assert written_at == sorted(set(written_at))  # the end of each round, not of the exchange
        together.append(list(counts))
        counts.clear()
    rounds = len(outcomes[0][2])
    assert outcomes[0] == outcomes[1]
    assert together[0] == [1] * rounds
    # The first round tells how long a round takes, and early stopping decides after each round.
    assert together[1] == ([1] * rounds if training else [1, 32, 2])


@pytest.mark.parametrize(
    ("mean_s", "expected"), [(0.0, 32), (0.001, 32), (0.01, 25), (0.1, 2), (0.2, 1), (60.0, 1)]
)
def test_rounds_of_several_workers_are_exchanged_each_quarter_of_a_second(
    mean_s: float, expected: int
) -> None:
    two, alone = (Ranks(0, count, torch.device("cpu"), distributed=count > 1) for count in (2, 1))
    assert results.rounds_together(two, mean_s) == expected
    assert results.rounds_together(alone, mean_s) == 1
