"""XGBoost on real Ray workers: one is killed, and the model stays the same, bit for bit."""

import signal
from typing import Any

import pytest
from boosted_tables import SAMPLED, boosted_job, mixed_table, outcome
from slow_runs import send, when_at_step

from training.attempts.history import read_attempts, read_failures
from training.attempts.job import TrainingJob
from training.storage.paths import Home
from training.supervision.launch import launch

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.mark.slow
def test_a_killed_worker_changes_no_bit(home: Home) -> None:
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
