"""Boosted trees on real Ray workers: the same bits after a kill, and from memory and Ray Data."""

import signal
from typing import Any

import numpy as np
import pytest
from boosted_tables import SAMPLED, boosted_job, mixed_table, outcome
from slow_runs import send, when_at_step

from training.attempts.history import read_attempts, read_failures
from training.attempts.job import TrainingJob
from training.data.dataset import is_validation, open_columns
from training.data.sample_order import checksum
from training.records import TrainedModel
from training.settings.schema import DataSettings
from training.storage.paths import Home
from training.supervision.launch import launch

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.mark.slow
@pytest.mark.parametrize("feed", ["memory", "stream"])
def test_a_killed_worker_changes_no_bit(home: Home, feed: str) -> None:
    version = mixed_table(home, home.root / "files", 6000)

    def job(name: str) -> TrainingJob:
        many: dict[str, Any] = {"rounds": 400, "max_depth": 4, **SAMPLED}
        return boosted_job(
            home,
            version,
            name=name,
            training=many,
            scaling={"num_workers": 2, "cpus_per_worker": 0.5, "use_gpu": "no"},
            failure={"worker_start_timeout_s": 400.0},  # for a machine that is busy with other tests
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


@pytest.mark.extended
@pytest.mark.parametrize("trainer", ["XGBoost", "LightGBM"])
def test_a_single_worker_learns_the_same_trees_from_ray_data(home: Home, trainer: str) -> None:
    """One worker has all rows in both feeds; only the identifiers of the rows differ."""
    version = mixed_table(home, home.root / "files", 600)

    def trained(feed: str) -> TrainedModel:
        one = {"num_workers": 1, "cpus_per_worker": 1, "use_gpu": "no"}
        return launch(boosted_job(home, version, trainer=trainer, data={"feed": feed}, scaling=one))

    memory, stream = trained("memory"), trained("stream")
    assert stream.weights_digest == memory.weights_digest
    assert {row.rows for row in stream.history} == {row.rows for row in memory.history}
    digests = open_columns(version, "train").digests
    learn = digests[~is_validation(digests, DataSettings().validation_share)]
    assert {row.checksum for row in stream.history} == {checksum(learn.view(np.int64))}
