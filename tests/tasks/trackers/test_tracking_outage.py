"""MLflow's server is away, answers with errors, is slow, or loses answers: no point is lost or duplicated."""

import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow_servers import MlflowServer, Proxy, mlflow_server
from tracked import difference, planned, recorded, slow_recipe, the_run

from flows.retrain import retrain
from tasks.evaluate import evaluate
from tasks.preflight import preflight
from tasks.register import register
from tasks.registry.aliases import champion_of
from tasks.trackers.mlflow_run import (
    ERROR_TAG,
    close_run,
    connect,
    connect_patiently,
    failure_recorded,
    open_run,
)
from tasks.train import train
from training.attempts.history import read_attempts
from training.attempts.metrics import MetricsFile
from training.errors import (
    EXIT_RETRY,
    SettingError,
    StopRequestedError,
    TrainingError,
    TransientError,
    classify,
)
from training.storage.paths import Home
from training.supervision.launch import finished

pytestmark = pytest.mark.usefixtures("prefect_harness")


NONE: Any = ({}, {})
_seeds = itertools.count(100)


@pytest.fixture
def seed() -> int:
    """A seed that no other test uses: tests with the same run key would share a run on the server."""
    return next(_seeds)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as started:
        yield started


@pytest.fixture
def proxy(server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy for the server; MLflow's client gives up within a second."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    made = Proxy(server.port)
    yield made
    made.away()


def when(ready: Callable[[], bool], act: Callable[[], Any]) -> threading.Thread:
    """Call `act` from a thread as soon as `ready()` is true."""

    def work() -> None:
        deadline = time.monotonic() + 120
        while not ready() and time.monotonic() < deadline:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def has_points(plan: Any, count: int) -> Callable[[], bool]:
    return lambda: len(MetricsFile(plan.paths.metrics).read()) >= count


@pytest.mark.slow
def test_a_server_killed_in_mid_training_and_started_again_has_every_point_once(
    server: MlflowServer, home: Home, tmp_path: Path
) -> None:
    recipe = slow_recipe(tmp_path, 0.35)
    training = {"epochs": 12, "global_batch_size": 48}
    plan, _ = planned(home, recipe, server.uri, training=training)

    away: list[tuple[float, float, bool]] = []

    def crash() -> None:
        server.kill()
        since = time.time()
        time.sleep(5)
        away.append((since, time.time(), answers(server.port)))
        server.start()

    crashing = when(lambda: has_points(plan, 4)() and bool(recorded(server.uri, plan)), crash)
    form = {name: section for name, section in plan.settings.model_dump().items() if name != "seed"}
    release = retrain(recipe, form)
    crashing.join()

    ((since, until, answered),) = away
    assert not answered
    at = [point.at for point in MetricsFile(plan.paths.metrics).read()]
    assert min(at) < since  # the server was killed after some points,
    # and more points followed while it was away
    assert len([moment for moment in at if since < moment < until]) > 2
    assert release.run_key == plan.run_key
    assert difference(server.uri, plan) == NONE
    assert len(recorded(server.uri, plan)) > 100
    client, run = the_run(server.uri, plan)
    assert run.info.status == "FINISHED"
    assert client.get_model_version_by_alias("slow", "champion").version == release.version
    assert retrain(recipe, form).reused


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.extended
def test_a_server_that_is_away_at_the_start_gets_the_points_later(
    proxy: Proxy, home: Home, tmp_path: Path, seed: int
) -> None:
    proxy.away()
    plan, version = planned(home, slow_recipe(tmp_path, 0.1), proxy.uri, seed=seed, training={"epochs": 6})
    waiting = when(has_points(plan, 3), proxy.back)
    trained = train.fn(plan, version)
    waiting.join()
    assert trained.attempts == 1
    assert difference(proxy.uri, plan) == NONE


@pytest.mark.extended
@pytest.mark.parametrize("status", [500, 503, None])
def test_training_does_not_wait_for_a_server_that_fails_or_is_slow(
    proxy: Proxy, home: Home, tmp_path: Path, seed: int, status: int | None
) -> None:
    recipe = slow_recipe(tmp_path, 0.1)
    training = {"epochs": 10, "global_batch_size": 48}
    plan, version = planned(home, recipe, proxy.uri, seed=seed, training=training)

    # The server accepts no metrics until the training has written 35 points: a training that waits writes fewer.
    proxy.about, proxy.status, proxy.held = "log-batch", status, status is None
    enough = has_points(plan, 35)
    written_before: list[bool] = []

    def behave() -> None:
        written_before.append(enough())
        proxy.well_behaved()

    behaving = when(lambda: enough() and proxy.hampered > 0, behave)
    train.fn(plan, version)
    behaving.join()
    assert written_before == [True], "training waited for MLflow"
    assert proxy.hampered > 0
    assert difference(proxy.uri, plan) == NONE


@pytest.mark.extended
def test_a_server_that_stays_away_is_worth_a_retry_which_does_not_train_again(
    proxy: Proxy, home: Home, seed: int
) -> None:
    proxy.away()
    plan, version = planned(home, uri=proxy.uri, seed=seed, tracking={"outage_s": 2})
    with pytest.raises(TransientError, match="run the same command again") as caught:
        train.fn(plan, version)
    assert caught.value.exit_status == EXIT_RETRY
    done = finished(plan.paths, plan.run_key)
    assert done is not None
    proxy.back()
    again = train.fn(plan, version)
    assert again.weights_digest == done.weights_digest
    assert len(read_attempts(plan.paths)) == 1
    assert difference(proxy.uri, plan) == NONE


def test_a_finished_training_leaves_no_monitor_behind(proxy: Proxy, home: Home, seed: int) -> None:
    plan, version = planned(home, uri=proxy.uri, seed=seed, tracking={"system_metrics": True})
    for _ in range(2):  # the second call sends only points
        train.fn(plan, version)
        assert [thread.name for thread in threading.enumerate() if "Monitor" in thread.name] == []


@pytest.mark.parametrize("path", ["experiments/create", "runs/create"])
def test_an_answer_lost_on_its_way_back_makes_nothing_twice(
    proxy: Proxy, home: Home, seed: int, path: str
) -> None:
    plan, _ = planned(home, uri=proxy.uri, seed=seed, tracking={"experiment": f"lost {path}"})
    proxy.lose = path
    client = connect(proxy.uri, home)
    run_id = open_run(client, plan)
    assert proxy.lost == 1
    assert proxy.seen.count(f"/api/2.0/mlflow/{path}") == 2
    assert the_run(proxy.uri, plan)[1].info.run_id == run_id
    assert open_run(client, plan) == run_id


@pytest.mark.extended
def test_a_version_whose_answer_was_lost_is_registered_once(proxy: Proxy, home: Home, seed: int) -> None:
    model = f"lost-{seed}"
    plan, version = planned(home, uri=proxy.uri, seed=seed, tracking={"model": model}, training={"epochs": 1})
    trained = train.fn(plan, version)
    evaluation = evaluate.fn(plan, version, trained)
    proxy.lose = "model-versions/create"
    release = register.fn(plan, version, trained, evaluation)
    assert proxy.lost == 1
    assert proxy.seen.count("/api/2.0/mlflow/model-versions/create") == 2
    client = connect(proxy.uri, home)
    assert [
        str(model_version.version) for model_version in client.search_model_versions(f"name = '{model}'")
    ] == [release.version]
    assert (release.alias, champion_of(client, model)) == ("champion", release.version)
    assert register.fn(plan, version, trained, evaluation).version == release.version


def test_credentials_of_an_address_do_not_reach_the_next_server(
    proxy: Proxy, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "mine")
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD", raising=False)
    names = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
    address = proxy.uri.replace("http://", "http://ada:se%20cret@")
    for _ in range(2):
        connect(address, home)
        assert [os.environ.get(name) for name in names] == ["ada", "se cret"]
    connect(proxy.uri, home)
    assert [os.environ.get(name) for name in names] == ["mine", None]


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_said_at_once(proxy: Proxy, home: Home, status: int) -> None:
    plan, _ = planned(home, uri=proxy.uri)
    proxy.status = status
    with pytest.raises(SettingError, match="MLFLOW_TRACKING_USERNAME"):
        connect_patiently(plan)
    assert len(proxy.seen) == 1


def test_a_server_that_refuses_writes_is_said_before_training(
    proxy: Proxy, home: Home, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    plan, version = planned(home, uri=proxy.uri, seed=seed, tracking={"experiment": f"closed {seed}"})
    proxy.about, proxy.status = "experiments/create", 403
    for step in (preflight, train):  # without the first, the second would fail after the training
        with caplog.at_level(logging.WARNING), pytest.raises(MlflowException) as raised:
            step.fn(plan, version)
        known = classify(raised.value)
        assert isinstance(known, SettingError)
        assert "refuses a request (status 403" in str(known)
    said = [record.message for record in caplog.records if record.name == "evergreen.tracking"]
    assert any("MLflow refuses the metrics" in message for message in said)
    assert not any("sent later" in message for message in said)
    proxy.well_behaved()
    preflight.fn(plan, version)
    train.fn(plan, version)
    assert difference(proxy.uri, plan) == NONE


@pytest.mark.parametrize(
    "uri", ["somewhere", "ftp://127.0.0.1/x", "file:///tmp/x", "http://[::1", "oracle://h/x"]
)
def test_what_is_no_store_is_refused(home: Home, uri: str) -> None:
    with pytest.raises(SettingError, match=r"tracking\.uri: "):
        connect(uri, home)


def test_a_deleted_experiment_is_said(home: Home) -> None:
    plan, _ = planned(home)
    client = connect(None, home)
    run_id = open_run(client, plan)
    experiment = client.get_run(run_id).info.experiment_id
    client.delete_experiment(experiment)
    with pytest.raises(SettingError, match=f"mlflow experiments restore --experiment-id {experiment}"):
        open_run(client, plan)
    client.restore_experiment(experiment)
    assert open_run(client, plan) == run_id


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TrainingError("it diverged"), "FAILED"),
        (StopRequestedError("stopped"), "KILLED"),
        (KeyboardInterrupt(), "KILLED"),
    ],
)
def test_a_failure_is_recorded_until_the_run_goes_on(home: Home, error: BaseException, status: str) -> None:
    plan, _ = planned(home)
    with pytest.raises(type(error)), failure_recorded(plan):
        raise error
    client, run = the_run(None, plan)
    assert run.info.status == status
    assert run.data.tags[ERROR_TAG].startswith(type(error).__name__)
    close_run(client, open_run(client, plan), "FINISHED")
    _, run = the_run(None, plan)
    assert (run.info.status, ERROR_TAG in run.data.tags) == ("FINISHED", False)


def test_a_failure_reaches_the_user_when_mlflow_is_away(proxy: Proxy, home: Home) -> None:
    proxy.away()
    plan, _ = planned(home, uri=proxy.uri)
    with pytest.raises(TrainingError, match="diverged"), failure_recorded(plan):
        raise TrainingError("it diverged")


@pytest.mark.slow
def test_a_killed_run_is_closed_by_the_next_start_with_another_run_key(
    home: Home, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = slow_recipe(tmp_path, 0.2)
    killed = kill_in_mid_training(home, recipe)
    assert killed.info.status == "RUNNING"
    other, version = planned(home, recipe, seed=1, training={"epochs": 1})
    with caplog.at_level(logging.INFO):
        train.fn(other, version)
    client = connect(None, home)
    assert client.get_run(killed.info.run_id).info.status == "KILLED"
    assert the_run(None, other)[1].info.run_id != killed.info.run_id


def kill_in_mid_training(home: Home, recipe: str) -> Any:
    """Start a retraining as a user would, kill all its processes during training, and return its MLflow run."""
    settings = (
        "scaling.num_workers=0",
        "training.epochs=50",
        "data.max_train_rows=300",
        "data.max_test_rows=100",
    )
    chosen = [part for setting in settings for part in ("--set", setting)]
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli.main", "retrain", recipe, *chosen],
        start_new_session=True,
        env=os.environ,
    )
    try:
        return running_run(home, process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def running_run(home: Home, process: "subprocess.Popen[bytes]") -> Any:
    """The MLflow run of a process, as soon as it has a metric."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if list(home.runs("slow").glob("*/metrics.jsonl")):
            for run in connect(None, home).search_runs(["1"]):
                if run.data.metrics:
                    return run
        time.sleep(0.3)
    raise AssertionError("no training came about")
