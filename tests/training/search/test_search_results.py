"""Results of a search: which trials the same command tries again, and which error a search without a winner has."""

from pathlib import Path

import pytest

from training.errors import (
    DataError,
    EvergreenError,
    ResourceError,
    SettingError,
    TrainingError,
    TransientError,
)
from training.ray_cluster.capacity import NoCapacityError
from training.search.records import Scheduler, Search, Trial, TrialFailure, TrialResult, kind_of
from training.search.results import failed_result, without_winner
from training.storage.record_files import DamagedError

TRIALS = tuple(Trial(number=number, values={}, run_key=str(number)) for number in (1, 2))


def search(*results: TrialResult) -> Search:
    return Search(
        recipe="digits",
        key="0" * 64,
        problem="classification",
        metric="accuracy",
        space={},
        scheduler="asha",
        seed=0,
        trials=TRIALS,
        results=results,
        published=True,
    )


def failed(error: EvergreenError) -> TrialResult:
    again = not isinstance(error, TrainingError)
    return TrialResult(number=1, status="failed", error=str(error), transient=again, kind=kind_of(error))


@pytest.mark.parametrize(
    "error",
    [
        SettingError("a"),
        DataError("b"),
        ResourceError("the disk is full"),
        TransientError("c"),
        TrainingError("d"),
        DamagedError(Path("e"), "cut short"),
        NoCapacityError("f"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_error_without_a_winner_is_that_of_the_trials(error: EvergreenError) -> None:
    search_error = without_winner(search(failed(error)))
    assert search_error.exit_status == error.exit_status
    assert str(error) in str(search_error)


def test_only_a_training_error_is_final() -> None:
    done = TrialResult(number=2, status="finished", validation_loss=0.5)
    assert search(failed(TrainingError("diverged")), done).left == []
    assert search(failed(ResourceError("the disk is full")), done).left == [TRIALS[0]]


def test_a_new_result_is_sent_to_mlflow() -> None:
    before = search(TrialResult(number=1, status="finished"))
    assert not before.with_result(TrialResult(number=2, status="finished")).published


def test_a_failure_of_an_earlier_version_has_no_class() -> None:
    old = TrialFailure.model_validate({"error": "no memory", "transient": True})
    result = TrialResult(number=1, status="failed", error=old.error, transient=old.transient, kind=old.kind)
    assert isinstance(without_winner(search(result)), TransientError)


@pytest.mark.parametrize(
    ("scheduler", "may_pass", "again"), [("asha", False, True), ("pbt", False, False), ("pbt", True, True)]
)
def test_with_pbt_only_a_failure_that_may_pass_is_waited_for(
    scheduler: Scheduler, may_pass: bool, again: bool
) -> None:
    why = TrialFailure(error="no GPU", transient=True, may_pass=may_pass, kind="SettingError")
    assert failed_result(scheduler, TrialResult(number=1, status="failed"), why).transient == again
