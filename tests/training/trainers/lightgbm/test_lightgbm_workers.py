"""LightGBM on real Ray workers: a killed worker changes no bit of the model; all rows together decide about columns."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boosted_tables import boosted_job, mixed_table, outcome
from slow_runs import send, when_at_step
from small_runs import prepared

from training.attempts.history import read_attempts, read_failures
from training.attempts.job import TrainingJob
from training.data.dataset import open_columns
from training.data.sources.table import Table
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.early_stopping import last_epoch
from training.trainers.lightgbm import inspection
from training.trainers.rows import training_rows

pytestmark = pytest.mark.usefixtures("ray_session")
TWO = {"num_workers": 2, "cpus_per_worker": 0.5, "use_gpu": "no"}
PATIENT = {"worker_start_timeout_s": 400.0}  # for a machine that is busy with other tests


@pytest.mark.slow
@pytest.mark.parametrize("feed", ["memory", "stream"])
def test_a_killed_worker_changes_no_bit(home: Home, feed: str) -> None:
    version = mixed_table(home, home.root / "files", 6000)

    def job(name: str) -> TrainingJob:
        many: dict[str, Any] = {"rounds": 300, "bagging_fraction": 0.7, "feature_fraction": 0.8}
        return boosted_job(
            home,
            version,
            name=name,
            trainer="LightGBM",
            training=many,
            scaling=TWO,
            failure=PATIENT,
            checkpoint={"every_steps": 20},
            data={"feed": feed},
        )

    hit = job("hit")
    killing = when_at_step(hit.paths, 60, send(1, signal.SIGKILL), past_first_step=False)
    trained = launch(hit)
    killing.join()
    first, second = read_attempts(hit.paths)
    # A checkpoint is due at least every 20 rounds, and waits for the one before it, but may be half written itself.
    assert second.first_step >= 20
    assert second.first_step % 10 == 0
    assert first.world_size == second.world_size == 2
    assert len(read_failures(hit.paths)) == 1
    assert trained.reproducible is True, trained.reproducible_reason
    calm = job("calm")
    assert outcome(hit, trained) == outcome(calm, launch(calm))


def rare_flag(home: Home) -> DatasetVersion:
    """200 rows, of which every fifth has a flag; the target depends on the flag alone, besides noise."""
    random = np.random.default_rng(0)
    noise, other = random.normal(size=(2, 200)).round(4)
    rows = [
        f"{int(at % 5 == 0)},{other[at]},{10 * (at % 5 == 0) + noise[at]:.4f}" for at in range(len(noise))
    ]
    (home.root / "flags.csv").write_text("\n".join(["flag,other,y", *rows, ""]))
    return prepared(home, Table(home.root / "flags.csv", "y"), "flags", problem="regression")


@pytest.mark.slow
def test_the_rows_of_all_workers_decide_about_a_column_and_about_the_end(home: Home) -> None:
    """No worker has enough rows with the flag for a leaf, so LightGBM would leave out the column before training."""
    home.root.mkdir(parents=True, exist_ok=True)
    version, fewest, rounds = rare_flag(home), 20, 120
    training = {"rounds": rounds, "min_data_in_leaf": fewest, "early_stopping_rounds": 5}
    job = boosted_job(home, version, trainer="LightGBM", training=training, scaling=TWO, failure=PATIENT)
    columns = open_columns(version, "train")
    flags = columns.inputs[training_rows(columns, job.settings)[0]][:, 0]
    assert max(flags[0::2].sum(), flags[1::2].sum()) < fewest <= flags.sum()
    trained = launch(job)
    shares = inspection.importances(Path(trained.weights))
    assert max(shares, key=lambda name: shares[name]) == "flag"
    losses = [row.validation_loss for row in trained.history]
    assert trained.steps == len(losses) == last_epoch(losses, 5, rounds) < rounds
    assert read_failures(job.paths) == []
