"""A training of XGBoost that is stopped, crashes or finds a damaged checkpoint ends with the same bits."""

from collections.abc import Callable
from typing import Any

import pytest
from boosted_tables import SAMPLED, boosted_job, bundled, outcome

from training.attempts.fence import Fence, SupersededError
from training.attempts.history import read_attempts
from training.attempts.job import TrainingJob
from training.errors import StopRequestedError
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import finished, launch
from training.trainers.boosting import replay
from training.trainers.boosting.loop import Loop
from training.trainers.boosting.replay import Replay
from training.trainers.boosting.rounds import ROUNDS_PER_BLOCK
from training.trainers.replay_outcome import read_outcome
from training.trainers.xgboost.boosting import XGBoostRounds

SETTINGS: dict[str, Any] = {"unsampled": {}, "sampled": SAMPLED}
EARLY = SAMPLED | {"rounds": 80, "early_stopping_rounds": 4}


class Crash(BaseException):
    """Ends a training at once; a BaseException that no code of Evergreen catches by name."""


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    return bundled(Home(tmp_path_factory.mktemp("table")), "classification")


@pytest.fixture(scope="module")
def calm(version: DatasetVersion, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ...]]:
    """The outcome of undisturbed trainings."""
    home = Home(tmp_path_factory.mktemp("calm"))
    outcomes = {}
    for name, training in SETTINGS.items():
        job = boosted_job(home, version, training=training)
        outcomes[name] = outcome(job, launch(job))
    return outcomes


@pytest.fixture(scope="module")
def early(version: DatasetVersion, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, tuple[Any, ...]]:
    """The last round and the outcome of an undisturbed training that ends early, within its second block or later."""
    job = boosted_job(Home(tmp_path_factory.mktemp("early")), version, training=EARLY)
    trained = launch(job)
    assert ROUNDS_PER_BLOCK < trained.steps < EARLY["rounds"]
    assert trained.steps % ROUNDS_PER_BLOCK > 1
    return trained.steps, outcome(job, trained)


def job_of(home: Home, version: DatasetVersion, name: str, **sections: Any) -> TrainingJob:
    return boosted_job(home, version, training=SETTINGS[name], **sections)


def at_round(monkeypatch: pytest.MonkeyPatch, chosen: int, act: Callable[[Loop], None]) -> None:
    """Call `act` after round `chosen` (1 is the first), once."""
    run_round = Loop._run_round
    left = [chosen]

    def run_and_act(self: Loop, model: Any, number: int) -> Any:
        result = run_round(self, model, number)
        if left == [number + 1]:
            left.clear()
            act(self)
        return result

    monkeypatch.setattr(Loop, "_run_round", run_and_act)


def ask_to_stop(loop: Loop) -> None:
    loop.job.paths.stop.touch()
    loop.requests.looked_at = 0.0  # looks every 0.2 s otherwise


def crash(loop: Loop) -> None:
    loop.checkpoints.wait()
    raise Crash


def first_steps(job: TrainingJob) -> list[int]:
    return [attempt.first_step for attempt in read_attempts(job.paths)]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("stopped", "resumed"), [(4, 0), (17, 10), (30, 30), (34, 30)])
def test_a_request_to_stop_keeps_whole_blocks(
    home: Home,
    version: DatasetVersion,
    calm: dict[str, tuple[Any, ...]],
    name: str,
    stopped: int,
    resumed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = job_of(home, version, name, checkpoint={"replay": False})
    at_round(monkeypatch, stopped, ask_to_stop)
    where = "there" if stopped == resumed else f"at step {resumed}: .* computed again"
    with pytest.raises(StopRequestedError, match=f"stopped on request at step {stopped} of 35; .* {where}"):
        launch(job)
    assert finished(job.paths, job.run_key) is None
    assert outcome(job, launch(job)) == calm[name]
    assert first_steps(job) == [0, resumed]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("crashed", "resumed"), [(3, 0), (10, 0), (11, 10), (29, 20), (35, 30)])
def test_a_crash_costs_the_rounds_since_the_newest_checkpoint(
    home: Home,
    version: DatasetVersion,
    calm: dict[str, tuple[Any, ...]],
    name: str,
    crashed: int,
    resumed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = job_of(home, version, name, checkpoint={"every_steps": 5})
    at_round(monkeypatch, crashed, crash)
    with pytest.raises(Crash):
        launch(job)
    assert outcome(job, launch(job)) == calm[name]
    assert first_steps(job) == [0, resumed]


@pytest.mark.parametrize("rounds_before", [1, 0])
def test_a_crash_before_an_early_end_changes_no_bit(
    home: Home,
    version: DatasetVersion,
    early: tuple[int, tuple[Any, ...]],
    rounds_before: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end, expected = early
    job = boosted_job(home, version, training=EARLY, checkpoint={"every_steps": 10})
    at_round(monkeypatch, end - rounds_before, crash)
    with pytest.raises(Crash):
        launch(job)
    assert outcome(job, launch(job)) == expected
    assert first_steps(job) == [0, end - end % ROUNDS_PER_BLOCK]


def test_a_crash_after_the_last_checkpoint_of_an_early_end_computes_no_round_again(
    home: Home, version: DatasetVersion, early: tuple[int, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    end, expected = early
    job = boosted_job(home, version, training=EARLY)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_finish", lambda loop, _block: crash(loop))
        with pytest.raises(Crash):
            launch(job)
    trained = launch(job)
    assert outcome(job, trained) == expected
    assert trained.stopped.startswith(f"stopped at round {end}: ")
    assert first_steps(job) == [0, end]


def test_a_request_to_stop_in_the_last_block_of_an_early_end(
    home: Home, version: DatasetVersion, early: tuple[int, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    end, expected = early
    job = boosted_job(home, version, training=EARLY)
    at_round(monkeypatch, end - 1, ask_to_stop)
    with pytest.raises(StopRequestedError, match=f"at step {end - 1} of {EARLY['rounds']}"):
        launch(job)
    assert outcome(job, launch(job)) == expected


def test_a_stop_after_a_resumed_stop_finds_its_points(
    home: Home, version: DatasetVersion, calm: dict[str, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint lists the number of points before it, not of those that will be written again."""
    job = job_of(home, version, "sampled", checkpoint={"replay": False})
    for chosen in (17, 12):
        at_round(monkeypatch, chosen, ask_to_stop)
        with pytest.raises(StopRequestedError):
            launch(job)
    assert outcome(job, launch(job)) == calm["sampled"]
    assert first_steps(job) == [0, 10, 10]


def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(
    home: Home, version: DatasetVersion, calm: dict[str, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(home, version, "sampled", checkpoint={"every_steps": 10})
    at_round(monkeypatch, 32, crash)
    with pytest.raises(Crash):
        launch(job)
    newest = job.paths.checkpoints / "step-000000030" / "state.pt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    assert outcome(job, launch(job)) == calm["sampled"]
    assert first_steps(job) == [0, 20]


def test_a_requested_checkpoint_is_saved_at_the_end_of_the_block(
    home: Home, version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask_to_save(loop: Loop) -> None:
        loop.job.paths.save.touch()
        loop.requests.looked_at = 0.0

    job = job_of(home, version, "sampled", checkpoint={"replay": False, "every_s": 1000.0})
    at_round(monkeypatch, 13, ask_to_save)
    launch(job)
    saved = sorted(path.name for path in job.paths.checkpoints.glob("step-*"))
    assert saved == ["step-000000020", "step-000000035"]
    assert not job.paths.save.exists()


def test_an_attempt_that_was_superseded_writes_no_model(
    home: Home, version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(home, version, "sampled")
    at_round(monkeypatch, 12, lambda loop: Fence.begin(loop.job.paths, "another") and None)
    with pytest.raises(SupersededError):
        launch(job)
    assert not job.paths.model.exists()


def test_the_replay_check_confirms_equal_bits(home: Home, version: DatasetVersion) -> None:
    job = job_of(home, version, "sampled")
    trained = launch(job)
    assert trained.reproducible is True
    replayed = read_outcome(job.paths)
    assert replayed is not None
    assert replayed.from_step == 10
    assert 1 <= replayed.steps <= 10


def test_an_early_end_shortens_the_replay_check(
    home: Home, version: DatasetVersion, early: tuple[int, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounds to repeat are those of the last block, of which only some are computed."""
    monkeypatch.setattr(replay, "_SECONDS", 1000.0)
    end, expected = early
    start = end - end % ROUNDS_PER_BLOCK
    monkeypatch.setattr(Replay, "needs_checkpoint", lambda _self, at: at == start)
    job = boosted_job(home, version, training=EARLY)
    trained = launch(job)
    assert trained.reproducible is True, trained.reproducible_reason
    replayed = read_outcome(job.paths)
    assert replayed is not None
    assert (replayed.from_step, replayed.steps) == (start, end - start)
    assert outcome(job, trained) == expected


def test_the_replay_check_finds_a_model_that_depends_on_more_than_the_checkpoint(
    home: Home, version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(1000))
    model_of = XGBoostRounds.model

    def seeded_by_the_call(self: XGBoostRounds, content: bytes, round_number: int) -> Any:
        model = model_of(self, content, round_number)
        model.set_param({"seed": next(calls)})
        return model

    monkeypatch.setattr(XGBoostRounds, "model", seeded_by_the_call)
    trained = launch(job_of(home, version, "sampled"))
    assert trained.reproducible is False
    assert "differs after step" in trained.reproducible_reason
    assert "the trees" in trained.reproducible_reason


def test_without_the_replay_check_its_absence_is_told(home: Home, version: DatasetVersion) -> None:
    trained = launch(job_of(home, version, "sampled", checkpoint={"replay": False}))
    assert (trained.reproducible, trained.reproducible_reason) == (
        None,
        "not checked: checkpoint.replay is off",
    )
