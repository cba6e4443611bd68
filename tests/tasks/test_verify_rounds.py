"""What `verify` finds in a run of boosted trees that failed once, resumed, and ended early."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from table_candidates import Candidate, candidate, parcels
from verified_run import edit

from tasks.verify import agreement, attempts, files, metrics, rows, weights
from training.attempts.metrics import MetricsFile
from training.errors import TransientError
from training.records import Release
from training.storage.paths import TRAINED, Home
from training.trainers.boosting.loop import Loop

pytest.importorskip("xgboost")
ROUNDS, INTERVAL, FAILS_AFTER = 200, 4, 17


def fail_once(patch: pytest.MonkeyPatch) -> None:
    """Fail once, as for a lost worker, after a pause with which the heartbeats record the round."""
    whole, failed = Loop._run_round, []

    def run_or_fail(self: Loop[Any], model: Any, number: int) -> Any:
        fails = number + 1 == FAILS_AFTER and not failed
        if fails:
            time.sleep(1.1)
        boosting_round = whole(self, model, number)
        if fails:
            failed.append(number)
            raise TransientError("a lost worker")
        return boosting_round

    patch.setattr(Loop, "_run_round", run_or_fail)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Candidate, Release]:
    """The run. It ended at a round without a regular metric point."""
    with pytest.MonkeyPatch.context() as patch:
        fail_once(patch)
        new_candidate = candidate(
            Home(tmp_path_factory.mktemp("home")),
            parcels(),
            rounds=ROUNDS,
            training={"early_stopping_rounds": 3, "learning_rate": 0.15},
            tracking={"log_every_steps": INTERVAL},
            checkpoint={"every_steps": 6},
        )
    assert FAILS_AFTER < len(new_candidate.trained.history) < ROUNDS
    assert len(new_candidate.trained.history) % INTERVAL
    release = new_candidate.register()
    new_candidate.keep(release)
    return new_candidate, release


@pytest.fixture
def sound(ended: tuple[Candidate, Release]) -> Iterator[Candidate]:
    """The run, undamaged before and after the test."""
    new_candidate, _ = ended
    kept = {file: file.read_bytes() for file in (_trained(new_candidate), new_candidate.plan.paths.release)}
    yield new_candidate
    for file, content in kept.items():
        file.write_bytes(content)


def _trained(new_candidate: Candidate) -> Path:
    return new_candidate.plan.paths.model / TRAINED


@pytest.mark.extended
def test_rounds_since_the_newest_block_may_be_computed_twice(ended: tuple[Candidate, Release]) -> None:
    outcome = attempts.computed_twice(ended[0].evidence())
    assert outcome.ok, outcome.detail
    assert outcome.detail.startswith("repeated steps: 2.1: 7; at most 10 steps between two checkpoints")


@pytest.mark.extended
def test_checkpoints_are_as_frequent_with_rows_from_ray_data(ended: tuple[Candidate, Release]) -> None:
    run = ended[0].evidence()
    settings = run.plan.settings
    streamed = settings.model_copy(update={"data": settings.data.model_copy(update={"feed": "stream"})})
    run.__dict__["plan"] = run.plan.model_copy(update={"settings": streamed})
    assert "at most 10 steps between two checkpoints" in attempts.computed_twice(run).detail


def test_an_early_end_is_no_damage(ended: tuple[Candidate, Release]) -> None:
    new_candidate, release = ended
    run = new_candidate.evidence()
    checks = (
        weights.recorded, weights.of_checkpoint, metrics.in_file, rows.used_once, files.checkpoints,
        agreement.records_agree,
    )  # fmt: skip
    for check in checks:
        outcome = check(run)
        assert outcome.ok, f"{check.__name__}: {outcome.detail}"
    end = len(new_candidate.trained.history)
    assert (release.epochs, release.stopped) == (end, new_candidate.trained.stopped)
    assert MetricsFile(new_candidate.plan.paths.metrics).read()[-1].step == end


def test_rounds_that_are_missing_are_found(sound: Candidate) -> None:
    edit(_trained(sound), lambda record: record["history"].pop())
    outcome = rows.used_once(sound.evidence())
    assert outcome.ok is False
    assert f"there should be {ROUNDS}" in outcome.detail


def test_another_reason_in_the_release_is_found(sound: Candidate) -> None:
    edit(sound.plan.paths.release, lambda record: record.update(stopped=""))
    outcome = agreement.records_agree(sound.evidence())
    assert outcome.ok is False
    assert "stopped is " in outcome.detail


def test_the_points_of_a_run_without_a_model_yet_are_where_they_should_be(sound: Candidate) -> None:
    _trained(sound).unlink()
    sound.plan.paths.release.unlink()
    outcome = metrics.in_file(sound.evidence())
    assert outcome.ok, outcome.detail
