"""Plans of a search: what is refused before any trial starts, and which run a trial is."""

from typing import Any

import pytest

from training import identity
from training.errors import SettingError
from training.plan import identify
from training.recipe import load
from training.search import planning
from training.search.planning import PlannedSearch, Request, check_request, plan_search, with_values
from training.search.ray_tune import rungs_of
from training.settings.overrides import resolve
from training.settings.schema import Settings
from training.storage.paths import Home

RATE = {"training.learning_rate": "loguniform(1e-4,1e-1)"}


def request(space: dict[str, str] = RATE, trials: int = 3, **more: Any) -> Request:
    return Request(space, trials, more.pop("scheduler", "asha"), more.pop("seed", 0), **more)


def planned(home: Home, wanted: Request, recipe: str = "diabetes", **overrides: Any) -> PlannedSearch:
    chosen, ref = load(recipe)
    files = chosen.source.fetch(home.sources / recipe)
    return plan_search(home, ref, resolve(chosen.settings, overrides), files, wanted)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (request({"training.learning_rat": "uniform(0,1)"}), "did you mean training.learning_rate"),
        (request({"training": "uniform(0,1)"}), "training is a section"),
        (request({"data.image_size": "randint(8,16)"}), "settings of data choose the rows"),
        (request({"data.validation_share": "uniform(0.1,0.2)"}), "settings of data choose the rows"),
        (request({"scaling.num_workers": "randint(1,3)"}), "each trial trains in one process"),
        (request({"training.init_from": "choice(champion,none)"}), "all trials start from the same weights"),
        (request({"seed": "randint(1,3)"}), "another seed"),
        (request({"gate.floor": "uniform(0,1)"}), "does not change the trained model"),
        (request(trials=0), "--trials 0: a search has 1 to"),
        (request(concurrent=0), "--concurrent 0: at least one"),
        (request(scheduler="grid"), "--scheduler grid: choose one of asha, pbt, none"),
        (request(generations=3), "--generations 3: only --scheduler pbt has generations"),
        (request(scheduler="pbt", trials=1), "--trials 1: --scheduler pbt compares two or more"),
        (request(scheduler="pbt", generations=1), "--generations 1: a search has two or more generations"),
        (request(scheduler="pbt", generations=0), "--generations 0: a search has two or more generations"),
        (request(scheduler="pbt", generations=5000), "--generations 5000: .* at most 10000 trials"),
        (
            request({"training.learning_rate": "uniform(-1,-0.5)"}),
            r"trial 1 \(training.learning_rate=-0.\d+\): ",
        ),
        (
            request({"training.global_batch_size": "choice(64,33)"}),
            r"trial \d \(training.global_batch_size=33\): .*do not divide among 2 workers",
        ),
    ],
)
def test_an_impossible_search_is_refused_before_any_trial(wanted: Request, why: str) -> None:
    with pytest.raises(SettingError, match=why):
        check_request(wanted, load("diabetes")[0].settings)


def test_the_trainer_is_not_searched() -> None:
    settings = Settings.model_validate({"training": {"trainer": "xgboost"}})
    with pytest.raises(SettingError, match="the recipe chooses the trainer"):
        check_request(request({"training.trainer": "choice(xgboost,lightgbm)"}), settings)


def test_a_store_apart_from_the_home_is_refused_on_a_cluster() -> None:
    there = {"storage": {"url": "file:///mnt/shared"}, "ray": {"address": "10.0.0.1:6379"}}
    settings = load("diabetes")[0].settings
    with pytest.raises(SettingError, match=r"storage\.url: the trials of a search need a home"):
        check_request(request(), resolve(settings, there))


def test_a_trial_is_the_run_of_a_retraining_with_the_same_values(home: Home) -> None:
    wanted = request()
    planned_search = planned(home, wanted)
    chosen, ref = load("diabetes")
    files = chosen.source.fetch(home.sources / "diabetes")
    for trial, plan in zip(planned_search.search.trials, planned_search.plans, strict=True):
        overrides = with_values({"scaling": {"num_workers": 0}}, trial.values)
        assert identify(home, ref, resolve(chosen.settings, overrides), files).run_key == plan.run_key
        assert trial.run_key == plan.run_key
    assert len({trial.run_key for trial in planned_search.search.trials}) == 3


def test_a_trial_reads_its_rows_without_ray(home: Home) -> None:
    rounds = request({"training.rounds": "randint(5,20)"})
    search = planned(home, rounds, "breast-cancer", data={"feed": "stream"})
    assert {plan.settings.data.feed for plan in search.plans} == {"memory"}


def test_the_same_request_is_the_same_search(home: Home) -> None:
    key = planned(home, request()).search.key
    assert planned(home, request(concurrent=1)).search.key == key
    assert planned(home, request(), gate={"floor": 0.5}).search.key == key
    others = [
        planned(home, request(trials=4)),
        planned(home, request(seed=1)),
        planned(home, request(scheduler="none")),
        planned(home, request(), training={"epochs": 3}),
        planned(home, request({"training.learning_rate": "loguniform(1e-4,1e-2)"})),
    ]
    assert len({key, *(other.search.key for other in others)}) == 6


def test_the_trials_of_a_search_are_planned_after_one_reading_of_the_runs(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading takes the longer, the more trials have run."""
    readings: list[str] = []

    def counted(_: Home, recipe: str) -> None:
        readings.append(recipe)

    monkeypatch.setattr(planning, "latest_run", counted)
    monkeypatch.setattr(identity, "latest_run", counted)
    assert len(planned(home, request(trials=20)).plans) > 10
    assert readings == ["diabetes"]


def test_equal_values_of_two_spellings_are_one_trial(home: Home) -> None:
    planned_search = planned(home, request({"training.weight_decay": "choice(1,1.0)"}, trials=2))
    assert [trial.number for trial in planned_search.search.trials] == [1]
    assert [plan.search for plan in planned_search.plans] == [planned_search.search.key]


@pytest.mark.parametrize(
    ("epochs", "rungs"), [(1, (1,)), (5, (1, 3)), (9, (1, 3, 9)), (20, (2, 6, 18)), (100, (11, 33, 99))]
)
def test_rungs_begin_at_a_ninth_of_the_epochs(epochs: int, rungs: tuple[int, ...]) -> None:
    assert rungs_of(epochs) == rungs
