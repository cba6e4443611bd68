"""Searches on real Ray Tune: trials, scores, what is reused, MLflow, and the winner's retraining."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import small_runs
from slow_runs import write_slow_recipe

from flows.search_outcome import outcome_if_done
from flows.tune import tune
from tasks.registry.aliases import CHAMPION, champion_of
from tasks.search import search
from tasks.trackers.mlflow_run import PARENT_RUN_TAG, RUN_KEY_TAG, connect
from tasks.train import keep_plan
from tasks.verify import verify
from training.attempts.history import read_attempts
from training.attempts.metrics import MetricsFile
from training.errors import EXIT_RETRY, EXIT_TERMINATED, TrainingError
from training.recipe import load
from training.records import DatasetVersion
from training.search.planning import PlannedSearch, Request, plan_search
from training.search.records import Search, SearchResult
from training.search.results import known_results
from training.settings.overrides import resolve
from training.storage.paths import HOME_VARIABLE, Home
from training.storage.record_files import read_record
from training.supervision.launch import finished

RATES = {"training.learning_rate": "choice(0.003,0.01,1e30)"}
HERE: dict[str, Any] = {
    "scaling": {"num_workers": 0, "use_gpu": "no"},
    "training": {"epochs": 9},
    "tracking": {"system_metrics": False},
    "gate": {"floor": 0.0},
}


class Searched(NamedTuple):
    """A search of the learning rate of recipe diabetes, after all its trials."""

    home: Home
    planned: PlannedSearch
    version: DatasetVersion
    search_record: Search


def request(space: dict[str, str] = RATES, trials: int = 3, **more: Any) -> Request:
    return Request(space, trials, "asha", more.pop("seed", 0), more.pop("concurrent", 2))


def planned_search(home: Home, recipe: str, wanted: Request, settings: dict[str, Any]) -> PlannedSearch:
    chosen, ref = load(recipe)
    files = chosen.source.fetch(home.sources / ref.name)
    return plan_search(home, ref, resolve(chosen.settings, settings), files, wanted)


@pytest.fixture(scope="module")
def searched(
    tmp_path_factory: pytest.TempPathFactory, ray_session: None, prefect_harness: None
) -> Iterator[Searched]:
    """All trials ran while the files of the test split were away."""
    home = Home(tmp_path_factory.mktemp("searched"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(home.root))
        source = load("diabetes")[0].source
        version = small_runs.prepared(home, source, "diabetes", problem="regression")
        planned = planned_search(home, "diabetes", request(), HERE)
        keep_plan(planned.plans[0])
        test, away = Path(version.path) / "test", home.root / "away"
        test.rename(away)
        search_record = search.fn(planned, version, 2)
        away.rename(test)
        yield Searched(home, planned, version, search_record)


def client_of(home: Home) -> Any:
    return connect(None, home)


@pytest.mark.extended
def test_trials_are_scored_by_validation_and_one_failure_ends_nothing(searched: Searched) -> None:
    by_rate = {
        trial.values["training.learning_rate"]: searched.search_record.result_of(trial)
        for trial in searched.search_record.trials
    }
    failed = by_rate.pop(1e30)
    assert failed is not None
    assert (failed.status, failed.transient, failed.epochs) == ("failed", False, 0)
    assert "training diverged" in failed.error
    for result in by_rate.values():
        assert result is not None
        plan = searched.planned.plans[result.number - 1]
        points = [point.values for point in MetricsFile(plan.paths.metrics).read() if "epoch" in point.values]
        assert result.validation_loss == min(values["validation/loss"] for values in points)
        assert result.status in ("finished", "stopped early")
        assert result.epochs == 9 or result.status == "stopped early"
    winner = searched.search_record.winner
    assert winner is not None
    done = [result for result in by_rate.values() if result is not None and result.status == "finished"]
    best = min(done, key=lambda trial_result: trial_result.validation_loss or 0.0)
    assert winner.number == best.number
    assert searched.search_record.complete
    assert searched.planned.picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.extended
def test_mlflow_has_a_parent_with_the_trials_and_nothing_is_registered(searched: Searched) -> None:
    client = client_of(searched.home)
    (experiment,) = [
        experiment for experiment in client.search_experiments() if experiment.name == "diabetes"
    ]
    runs = {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])}
    parent = runs.pop(searched.search_record.mlflow_run_id)
    assert parent.info.status == "FINISHED"
    assert parent.data.params["space.training.learning_rate"] == RATES["training.learning_rate"]
    assert {run.data.tags[PARENT_RUN_TAG] for run in runs.values()} == {parent.info.run_id}
    by_key = {run.data.tags[RUN_KEY_TAG]: run for run in runs.values()}
    for trial in searched.search_record.trials:
        run, result = by_key.pop(trial.run_key), searched.search_record.result_of(trial)
        assert result is not None
        assert run.data.tags["evergreen.trial_status"] == result.status
        assert run.info.status != "RUNNING"
        history = client.get_metric_history(run.info.run_id, "validation/loss")
        assert len(history) == result.epochs
    assert not by_key
    for plan in searched.planned.plans:  # trials have no release
        assert not [finding for finding in verify(plan.paths, searched.home) if finding.ok is False]
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert {"search.json", "parallel_coordinates.png"} <= files


@pytest.mark.extended
def test_repeated_it_trains_nothing_and_registers_the_winner(searched: Searched) -> None:
    plans = searched.planned.plans
    before = [read_attempts(plan.paths) for plan in plans]
    result = tune("diabetes", RATES, trials=3, concurrent=1, settings=HERE)
    assert [read_attempts(plan.paths) for plan in plans] == before
    winner = plans[result.winner - 1]
    trained = finished(winner.paths, winner.run_key)
    release = result.release
    assert release is not None
    assert trained is not None
    assert (release.run_key, release.weights_digest) == (winner.run_key, trained.weights_digest)
    client = client_of(searched.home)
    assert champion_of(client, "diabetes", CHAMPION) == release.version == "1"
    assert not [finding for finding in verify(winner.paths, searched.home) if finding.ok is False]
    again = outcome_if_done("diabetes", request(), HERE, searched.home, retrain_winner=True)
    assert again is not None
    assert again.reused
    assert again.release is not None
    assert again.release.version == "1"


@pytest.mark.extended
def test_the_winner_s_command_names_all_its_settings(searched: Searched) -> None:
    result = tune("diabetes", RATES, trials=3, settings=HERE, retrain_winner=False)
    winner = result.search.trials[result.winner - 1]
    rate = f"--set training.learning_rate={winner.values['training.learning_rate']}"
    assert result.command.startswith("evergreen retrain diabetes --set scaling.num_workers=0")
    assert rate in result.command
    assert "--set training.epochs=9" in result.command


@pytest.mark.extended
def test_a_trial_of_another_search_is_reused(searched: Searched) -> None:
    wanted = request({"training.learning_rate": "choice(0.003,0.02)"}, trials=2)
    search_record = known_results(planned_search(searched.home, "diabetes", wanted, HERE))
    trained = {
        trial.values["training.learning_rate"]: search_record.result_of(trial)
        for trial in searched.search_record.trials
        if (result := searched.search_record.result_of(trial)) is not None and result.status == "finished"
    }
    reused = {
        trial.values["training.learning_rate"]
        for trial in search_record.trials
        if search_record.result_of(trial)
    }
    assert reused == {0.003, 0.02} & set(trained)
    assert all(result.reused for result in search_record.results)


@pytest.mark.slow
def test_asha_ends_a_worse_trial_early_which_can_go_on(home: Home, ray_session: None, tmp_path: Path) -> None:
    recipe = write_slow_recipe(tmp_path)
    settings = HERE | {"training": {"epochs": 30, "global_batch_size": 256}}
    rates = {"training.learning_rate": "choice(0.01,1e-9)"}
    wanted = next(
        candidate
        for candidate in (request(rates, trials=2, seed=seed, concurrent=1) for seed in range(100))
        if planned_search(home, recipe, candidate, settings).search.trials[0].values
        == {"training.learning_rate": 0.01}
    )
    version = small_runs.prepared(home, name="slow")
    planned = planned_search(home, recipe, wanted, settings)
    search_record = search.fn(planned, version, wanted.concurrent)
    assert [result.status for result in search_record.results] == ["finished", "stopped early"]
    stopped = planned.plans[1]
    assert 3 <= search_record.results[1].epochs < 30
    assert not stopped.paths.stop.exists()
    assert any(stopped.paths.checkpoints.iterdir())
    assert known_results(planned).complete  # a trial that was stopped is not begun again


HANGS_ONCE = """
import time
from pathlib import Path
from evergreen import Digits, Recipe

def build_model(shape, classes):
    from torch import nn

    class HangsOnce(nn.Sequential):
        steps = 0

        def forward(self, images):
            if self.training:
                self.steps += 1
                if self.steps < 6:
                    time.sleep(0.3)  # so that a heartbeat is written after the first step
                elif self.steps == 6:
                    self.hang()
            return super().forward(images)

        def hang(self):
            try:
                Path("{folder}", "hung").touch(exist_ok=False)
            except FileExistsError:
                return
            time.sleep(1e6)

    return HangsOnce(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

recipe = Recipe("hangs", "its first training hangs", Digits(), build_model=build_model)
"""


@pytest.mark.slow
def test_a_trial_that_hangs_fails_and_the_search_goes_on(
    home: Home, ray_session: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "hangs.py"
    file.write_text(HANGS_ONCE.replace("{folder}", str(tmp_path)))
    settings = HERE | {"training": {"epochs": 1}, "failure": {"hang_timeout_s": 8.0, "stop_timeout_s": 1.0}}
    settings |= {"checkpoint": {"replay": False}}
    wanted = request({"training.learning_rate": "choice(0.01,0.02)"}, trials=2, concurrent=1)
    version = small_runs.prepared(home, name="hangs")
    planned = planned_search(home, str(file), wanted, settings)
    search_record = search.fn(planned, version, wanted.concurrent)
    first, second = search_record.results
    assert (first.status, first.transient, second.status) == ("failed", True, "finished")
    assert "the trial hung: no worker sent a heartbeat" in first.error
    assert " in hang" in caplog.text  # the stack of the process
    assert [trial.number for trial in search_record.left] == [1]
    again = search.fn(planned, version, wanted.concurrent)
    assert [result.status for result in again.results] == ["finished", "finished"]


@pytest.mark.extended
def test_a_damaged_record_is_set_aside_and_rebuilt_from_the_trials(
    searched: Searched, caplog: pytest.LogCaptureFixture
) -> None:
    planned, record = searched.planned, searched.planned.record
    whole = record.read_bytes()
    record.write_bytes(whole[:-30])
    assert not known_results(planned).published
    assert record.read_bytes() == whole[:-30]  # who only reads changes nothing
    early = [result for result in searched.search_record.results if result.status == "stopped early"]
    search_record = known_results(planned, rewrites=True)
    try:
        assert record.with_name("search.json.damaged-0").read_bytes() == whole[:-30]
        assert f"{record} is damaged" in caplog.text
        kept = [result for result in searched.search_record.results if result not in early]
        assert [
            (result.number, result.status, result.validation_loss, result.error)
            for result in search_record.results
        ] == [(result.number, result.status, result.validation_loss, result.error) for result in kept]
        assert [trial.number for trial in search_record.left] == [result.number for result in early]
        if not early:
            assert (
                search.fn(planned, searched.version, 2).mlflow_run_id == searched.search_record.mlflow_run_id
            )
            assert read_record(record, Search, planned.folder.name).complete
    finally:
        record.write_bytes(whole)


@pytest.mark.slow
def test_a_search_of_failing_trials_alone_fails(home: Home, ray_session: None) -> None:
    source = load("diabetes")[0].source
    version = small_runs.prepared(home, source, "diabetes", problem="regression")
    wanted = request({"training.learning_rate": "choice(1e30,1e31)"}, trials=1)
    planned = planned_search(home, "diabetes", wanted, HERE)
    with pytest.raises(TrainingError, match=r"none of the 1 trials .* training diverged"):
        search.fn(planned, version, 2)
    parent = known_results(planned).mlflow_run_id
    assert client_of(home).get_run(parent).info.status == "FAILED"


SLOW = [
    *("--space", "training.learning_rate=loguniform(1e-3,1e-1)", "--trials", "3", "--scheduler", "none"),
    *("--set", "training.epochs=12", "--set", "scaling.use_gpu=no", "--set", "gate.floor=0"),
    *(
        "--set",
        "checkpoint.every_steps=4",
        "--set",
        "tracking.system_metrics=false",
        "--set",
        "ray.num_cpus=2",
    ),
    *("--set", "ray.object_store_mb=80", "--no-retrain", "--json"),
]


def command(home: Home, recipe: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli.main", "tune", recipe, *SLOW],
        env=os.environ | {HOME_VARIABLE: str(home.root), "EVERGREEN_TEST_STEP_S": "0.1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def losses(said: str) -> list[float | None]:
    search_record = SearchResult.model_validate(json.loads(said.splitlines()[-1])).search
    return [result.validation_loss for result in search_record.results]


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_search_continues_to_the_same_result(
    signal_number: signal.Signals, home: Home, tmp_path: Path
) -> None:
    recipe = write_slow_recipe(tmp_path)
    undisturbed, _ = command(Home(tmp_path / "other"), recipe).communicate()
    process = command(home, recipe)
    while not any(home.runs("slow").glob("*/checkpoints/step-*")):
        assert process.poll() is None
        time.sleep(0.2)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal_number)
    process.communicate()
    assert process.returncode == (EXIT_TERMINATED if signal_number == signal.SIGTERM else -signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=120)
    assert alive == []
    continued, _ = command(home, recipe).communicate()
    assert losses(continued) == losses(undisturbed)
    resumed = [
        attempt
        for file in home.runs("slow").iterdir()
        for attempt in read_attempts(home.run("slow", file.name))
    ]
    assert any(attempt.first_step > 0 for attempt in resumed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_search_ends_when_its_ray_dies_and_the_same_command_continues(
    name: str, home: Home, tmp_path: Path
) -> None:
    """Ray Tune alone would wait for a node for ever."""
    recipe = write_slow_recipe(tmp_path)
    process = command(home, recipe)
    while not any(home.runs("slow").glob("*/checkpoints/step-*")):
        assert process.poll() is None
        time.sleep(0.2)
    family = psutil.Process(process.pid).children(recursive=True)
    next(member for member in family if member.name() == name).kill()
    process.communicate()
    assert process.returncode == EXIT_RETRY
    _, alive = psutil.wait_procs(family, timeout=120)
    assert alive == []
    continued, _ = command(home, recipe).communicate()
    assert None not in losses(continued)
