"""Population-based training on real Ray Tune: what each generation starts from, and what a repeated search reuses."""

import logging
import shutil
from typing import Any

import pytest
import small_runs

from flows.search_outcome import outcome_if_done
from flows.tune import tune
from tasks.registry.aliases import CHAMPION, champion_of
from tasks.search import search
from tasks.trackers.mlflow_run import PARENT_RUN_TAG, RUN_KEY_TAG, connect
from tasks.train import keep_plan
from tasks.verify import verify
from training.attempts.history import read_attempts
from training.recipe import load
from training.search.generations import _explored, grown
from training.search.planning import PlannedSearch, Request, nested, plan_search
from training.search.records import Search
from training.search.results import known_results
from training.search.space import parse_space
from training.settings.overrides import resolve
from training.storage.paths import Home
from training.storage.record_files import find_record
from training.supervision.launch import finished

SPACE = {"training.learning_rate": "loguniform(1e-4,3e-2)", "training.weight_decay": "choice(0,0.01,0.1)"}
SETTINGS: dict[str, Any] = {
    "scaling": {"num_workers": 0, "use_gpu": "no"},
    "training": {"epochs": 2},
    "tracking": {"system_metrics": False},
    "gate": {"floor": 0.0},
}
REQUEST = Request(SPACE, 3, "pbt", seed=0, concurrent=2, generations=3)


def planned_search(
    home: Home, request: Request = REQUEST, settings: dict[str, Any] = SETTINGS
) -> PlannedSearch:
    chosen, ref = load("diabetes")
    files = chosen.source.fetch(home.sources / ref.name)
    return plan_search(home, ref, resolve(chosen.settings, settings), files, request)


def generation_of(planned: PlannedSearch, number: int) -> list[Any]:
    return [trial for trial in planned.search.trials if trial.generation == number]


def check_starts(planned: PlannedSearch, search_record: Search) -> None:
    """Each trial but those of the first generation starts from the weights of its parent, the best one twice."""
    losses = {result.number: result.validation_loss or 0.0 for result in search_record.results}
    for number in (2, 3):
        before, members = generation_of(planned, number - 1), generation_of(planned, number)
        ranked = sorted(before, key=lambda trial: losses[trial.number])
        assert sorted(trial.parent for trial in members) == sorted(
            [ranked[0].number, ranked[0].number, ranked[1].number]
        )
        for trial in members:
            parent = planned.trial(trial.parent)
            plan, start = planned.plan_of(trial), planned.plan_of(parent)
            trained = finished(start.paths, start.run_key)
            assert trained is not None
            assert plan.initial is not None
            assert plan.initial.digest == trained.weights_digest
            assert plan.paths.initial_rows.is_file()  # the parent's training rows are known
            assert plan.settings.seed == planned.settings.seed + number - 1
        kept = [trial for trial in members if trial.values == planned.trial(trial.parent).values]
        assert len(kept) == 2  # the third place has other values


@pytest.mark.extended
def test_a_population_is_trained_in_generations(
    home: Home, ray_session: None, prefect_harness: None, caplog: pytest.LogCaptureFixture
) -> None:
    version = small_runs.prepared(home, load("diabetes")[0].source, "diabetes", problem="regression")
    caplog.set_level(logging.INFO, "evergreen")
    first = planned_search(home)
    keep_plan(first.plans[0])
    search_record = search.fn(first, version, 2)
    planned = grown(first)
    assert known_results(planned) == search_record
    assert search_record.complete
    assert [trial.generation for trial in search_record.trials] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert {result.status for result in search_record.results} == {"finished"}
    check_starts(planned, search_record)
    assert "generation 3 of 3 begins" in caplog.text
    assert "trial 9/9 finished" in caplog.text
    winner = search_record.winner
    assert winner is not None
    assert winner.generation > 1  # two more epochs lower the loss of this recipe

    # MLflow has all trials below one parent.
    client = connect(None, home)
    (experiment,) = [
        experiment for experiment in client.search_experiments() if experiment.name == "diabetes"
    ]
    runs = {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])}
    parent = runs.pop(search_record.mlflow_run_id)
    assert parent.data.params["generations"] == "3"
    assert parent.data.params["trials"] == "9"
    assert {run.data.tags[PARENT_RUN_TAG] for run in runs.values()} == {search_record.mlflow_run_id}
    assert {run.data.tags[RUN_KEY_TAG] for run in runs.values()} == {
        trial.run_key for trial in search_record.trials
    }

    # The same command trains nothing. The winner's run is reused, since the retraining has no workers, too.
    before = [read_attempts(plan.paths) for plan in planned.plans]
    result = tune("diabetes", SPACE, 3, "pbt", 1, generations=3, settings=SETTINGS)
    assert [read_attempts(plan.paths) for plan in planned.plans] == before
    release, best = result.release, planned.plan_of(winner)
    assert release is not None
    assert release.run_key == winner.run_key
    assert "not known" not in release.verdict.summary
    assert champion_of(client, "diabetes", CHAMPION) == release.version == "1"
    assert f"--set training.init_from={best.settings.training.initial_weights}" in result.command
    assert f"--set seed={best.settings.seed}" in result.command
    assert not [finding for finding in verify(best.paths, home) if finding.ok is False]
    again = outcome_if_done("diabetes", REQUEST, SETTINGS, home, retrain_winner=True)
    assert again is not None
    assert (again.reused, again.winner, again.release and again.release.version) == (True, winner.number, "1")

    # Without its record, and without a model from which trials of the second generation start, the search trains that
    # model again and finds the other trials: the same weights give the same run keys.
    planned.record.unlink()
    deleted = planned.plan_of(planned.trial(generation_of(planned, 2)[0].parent))
    shutil.rmtree(deleted.paths.root)
    assert [trial.run_key for trial in known_results(grown(first)).left] == [deleted.run_key]
    rebuilt = search.fn(first, version, 2)
    assert rebuilt.trials == search_record.trials
    assert [result.validation_loss for result in rebuilt.results] == [
        result.validation_loss for result in search_record.results
    ]
    assert [result.number for result in rebuilt.results if not result.reused] == [
        trial.number for trial in search_record.trials if trial.run_key == deleted.run_key
    ]
    assert find_record(planned.record, Search, planned.folder.name) == rebuilt


def searched(
    home: Home, request: Request, settings: dict[str, Any] = SETTINGS
) -> tuple[PlannedSearch, Search]:
    """A search to its end, and its results."""
    version = small_runs.prepared(home, load("diabetes")[0].source, "diabetes", problem="regression")
    planned = planned_search(home, request, settings)
    keep_plan(planned.plans[0])
    search_record = search.fn(planned, version, 2)
    return grown(planned), search_record


@pytest.mark.extended
def test_a_population_keeps_its_size_although_its_values_are_few(
    home: Home, ray_session: None, prefect_harness: None
) -> None:
    """With two values, every second draw is the parent's own value, which would be the parent's own continuation."""
    space = {"training.optimizer": "choice(adamw,sgd)"}
    settings = SETTINGS | {"training": {"epochs": 2, "init_from": "champion", "freeze": ["0"]}}
    request = Request(space, 2, "pbt", seed=0, concurrent=2, generations=3)
    planned, search_record = searched(home, request, settings)
    assert [trial.generation for trial in search_record.trials] == [1, 1, 2, 2, 3, 3]
    for number in (2, 3):
        assert {trial.values["training.optimizer"] for trial in generation_of(planned, number)} == {
            "adamw",
            "sgd",
        }
    assert len({trial.run_key for trial in search_record.trials}) == 6
    parents = {
        trial.number: planned.trial(trial.parent).values for trial in search_record.trials if trial.parent
    }
    replaced = [
        trial for trial in search_record.trials if trial.values != parents.get(trial.number, trial.values)
    ]
    first_draws = [
        _explored(parse_space(space), parents[trial.number], 0, trial.number) for trial in replaced
    ]
    # A second draw was needed.
    assert any(draw == parents[trial.number] for draw, trial in zip(first_draws, replaced, strict=True))
    # Without a champion, the first generation starts from new weights, which are not frozen.
    assert [plan.initial is None for plan in planned.plans] == [True, True, False, False, False, False]
    assert all(list(plan.settings.training.freeze) == [] for plan in planned.plans[2:])  # type: ignore[attr-defined]
    later = planned.overrides_of(planned.trial(6))
    assert resolve(planned.settings, nested(later)) == planned.plans[5].settings


@pytest.mark.extended
def test_a_trial_whose_values_can_t_run_here_is_replaced(
    home: Home, ray_session: None, prefect_harness: None
) -> None:
    """float16 needs a GPU, which planning does not rule out; the search goes on without waiting for one."""
    space = {"training.precision": "choice(float32,float16)"}
    settings = SETTINGS | {"scaling": {"num_workers": 0}}
    request = Request(space, 2, "pbt", seed=0, concurrent=2, generations=2)
    planned, search_record = searched(home, request, settings)
    failed = [result for result in search_record.results if result.status == "failed"]
    assert {result.kind for result in failed} == {"SettingError"}
    assert {planned.trial(result.number).values["training.precision"] for result in failed} == {"float16"}
    (sound,) = [
        trial for trial in generation_of(planned, 1) if trial.values["training.precision"] == "float32"
    ]
    assert {trial.parent for trial in generation_of(planned, 2)} == {sound.number}
    assert search_record.winner is not None
    assert search_record.winner.values["training.precision"] == "float32"
