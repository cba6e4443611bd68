"""Commands `predict`, `rollback` and `doctor` as a user starts them, reused runs, and all exit statuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import registered
from prefect.exceptions import MissingResult, UnfinishedRun
from registered import BROKEN, MODEL, save
from test_cli import HEAVY, evergreen

import flows.preview
import flows.retrain
from flows.cli import main as cli
from flows.cli import recipes
from flows.retrain import retrain
from tasks.registry.aliases import CHAMPION, PREVIOUS, champion_of, move_alias
from tasks.registry.lock import registry_lock
from tasks.trackers.mlflow_run import connect
from training.errors import (
    EXIT_BAD_DATA,
    EXIT_BAD_SETTING,
    EXIT_BUG,
    EXIT_HELD,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_OUTPUT_CLOSED,
    EXIT_RESOURCE,
    EXIT_RETRY,
    EXIT_TERMINATED,
    EXIT_TRAINING_FAILED,
    DataError,
    EvergreenError,
    ResourceError,
    SettingError,
    TrainingError,
    TransientError,
)
from training.storage.paths import Home


def last_line(done: "subprocess.CompletedProcess[str]") -> Any:
    return json.loads(done.stdout.splitlines()[-1])


def test_predict(served_home: Home, tmp_path: Path) -> None:
    images, output = tmp_path / "images", tmp_path / "out.parquet"
    save(images, [("a.png", "red top"), ("b.png", "blue bottom")])
    (images / "bad.png").write_bytes(BROKEN)
    output.write_text("of an earlier time")
    command = ["predict", MODEL, str(images), str(output), "--json", "--alias", "challenger", "--overwrite"]

    refused = evergreen(*command, home=served_home.root)
    assert refused.returncode == EXIT_BAD_DATA
    assert last_line(refused)["exit_status"] == EXIT_BAD_DATA
    assert "bad.png" in last_line(refused)["error"]
    assert output.read_text() == "of an earlier time"

    done = evergreen(*command, "--skip-bad", home=served_home.root)
    assert done.returncode == EXIT_OK, done.stderr
    summary = last_line(done)
    assert (summary["model"], summary["version"]) == (MODEL, "2")  # the challenger
    rows = pq.read_table(output).to_pylist()
    assert [(row["where"], row["class"], row["version"]) for row in rows] == [
        ("a.png", "red top", "2"),
        ("b.png", "blue bottom", "2"),
    ]


def test_rollback(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    client = registered.register(home, versions=2)
    with registry_lock(client, home, MODEL) as lease:
        move_alias(lease, "2", expected="1", why="better")
    done = evergreen("rollback", MODEL, "--why", "wrong on new cameras", "--json", home=home.root)
    assert done.returncode == EXIT_OK, done.stderr
    assert last_line(done) == {"model": MODEL, "from": "2", "to": "1"}
    assert (champion_of(client, MODEL, CHAMPION), champion_of(client, MODEL, PREVIOUS)) == ("1", "2")
    assert client.get_model_version(MODEL, "2").tags["evergreen.rolled_back"] == "wrong on new cameras"
    assert not home.prefect.exists()  # the command started no Prefect server


@pytest.mark.extended
@pytest.mark.parametrize(
    "command", [["predict", "nothing", "images", "out.parquet"], ["rollback", "nothing"]], ids=lambda c: c[0]
)
def test_an_unknown_model_is_refused_before_anything_is_started(tmp_path: Path, command: list[str]) -> None:
    done = evergreen(*command, home=tmp_path)
    assert done.returncode == EXIT_BAD_SETTING
    assert "model 'nothing': no such model. No model is registered yet" in done.stderr
    assert not (tmp_path / "mlflow.db").exists()
    assert not (tmp_path / "prefect").exists()


@pytest.mark.slow
def test_doctor_starts_ray_when_asked_to(tmp_path: Path) -> None:
    done = evergreen("doctor", "--deep", "--json", home=tmp_path)
    checks = {check["name"]: check for check in last_line(done)}
    assert done.returncode == EXIT_OK, [check for check in checks.values() if check["ok"] is False]
    assert checks["Ray"]["ok"]
    assert checks["Ray"]["found"].startswith("started, ran a task and stopped")


@pytest.mark.extended
def test_doctor_finds_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"not a database" * 100)
    done = evergreen("doctor", "--json", home=tmp_path)
    assert done.returncode == EXIT_RESOURCE
    broken = [check for check in last_line(done) if check["ok"] is False]
    assert [check["name"] for check in broken] == ["MLflow store"]
    assert broken[0]["remedy"]
    assert (tmp_path / "mlflow.db").read_bytes() == b"not a database" * 100


@pytest.fixture(scope="module")
def finished_home(tmp_path_factory: pytest.TempPathFactory, prefect_harness: None) -> Home:
    """A home in which `retrain digits` with :data:`ASSIGNMENTS` has finished."""
    home = Home(tmp_path_factory.mktemp("finished"))
    settings = {"training": {"epochs": 1}, "scaling": {"num_workers": 0}, "gate": {"floor": 0.3}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERGREEN_HOME", str(home.root))
        assert not retrain("digits", settings).reused
    return home


ASSIGNMENTS = ["--set", "training.epochs=1", "--set", "scaling.num_workers=0", "--set", "gate.floor=0.3"]


@pytest.mark.extended
@pytest.mark.parametrize("command", ["retrain", "plan"])
def test_a_reused_run_imports_neither_torch_nor_ray(finished_home: Home, command: str) -> None:
    began, heavy = time.monotonic(), HEAVY - {"mlflow", "pandas"}  # imported by MLflow's client
    program = (
        "import sys\nfrom flows.cli.main import main\n"
        f"status = main({[command, 'digits', *ASSIGNMENTS, '--json']!r})\n"
        f"print(status, sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"EVERGREEN_HOME": str(finished_home.root)},
        check=True,
    )
    *_, answer, last = done.stdout.splitlines()
    made = json.loads(answer)
    assert made["reused"] if command == "retrain" else made["outcome"].startswith("nothing to do")
    if command == "retrain":  # seconds of this command, not of the run that created the version
        assert 0 < made["seconds"] < time.monotonic() - began
        assert "s; the run that made this version took" in done.stdout
    assert last == "0 []"
    assert connect(None, finished_home).get_model_version_by_alias("digits", CHAMPION).version == 1


@pytest.mark.extended
@pytest.mark.parametrize("lost_by", [MissingResult, UnfinishedRun])
def test_a_release_that_prefect_lost_is_still_printed(
    finished_home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lost_by: type[Exception],
) -> None:
    """Prefect raises MissingResult for a finished run if its server confirmed the final state at a second request.

    It raises UnfinishedRun for a run that was cancelled in Prefect meanwhile.
    """
    monkeypatch.setenv("EVERGREEN_HOME", str(finished_home.root))

    calls = []

    def lost(*given: Any, **options: Any) -> None:
        calls.append(given)
        retrain(*given, **options)
        raise lost_by("the state has no data")

    monkeypatch.setattr(flows.retrain, "retrain", lost)
    monkeypatch.setattr(flows.preview, "release_if_unchanged", lambda *_: None)  # so that the flow runs
    assert cli.main(["retrain", "digits", *ASSIGNMENTS, "--json"]) == EXIT_OK
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["version"], said["reused"], len(calls)) == ("1", True, 1)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SettingError("no such setting"), EXIT_BAD_SETTING),
        (DataError("row 3"), EXIT_BAD_DATA),
        (TrainingError("it diverged"), EXIT_TRAINING_FAILED),
        (ResourceError("disk full"), EXIT_RESOURCE),
        (TransientError("away"), EXIT_RETRY),
        (ZeroDivisionError("division by zero"), EXIT_BUG),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_has_its_exit_status(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    status: int,
) -> None:
    def fail(**_options: object) -> int:
        raise error

    monkeypatch.setattr(recipes.command, "callback", fail)
    assert cli.main(["recipes", "--json"]) == status
    said = capsys.readouterr()
    assert json.loads(said.out)["exit_status"] == status
    assert str(error) in json.loads(said.out)["error"]
    assert str(error) in said.err
    assert ("Traceback" in said.err) == (not isinstance(error, EvergreenError))  # for a bug only


_WAITS = """
import signal, sys, time
from flows.cli import main as cli
from flows.cli import recipes
signal.signal(signal.SIGINT, signal.default_int_handler)  # as from a terminal; a job in the background ignores it
def wait(**options):
    try:
        print("waits", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)
recipes.command.callback = wait
sys.exit(cli.main(["recipes"]))
"""


@pytest.mark.parametrize(
    ("signum", "status", "word"),
    [(signal.SIGINT, EXIT_INTERRUPTED, "interrupted"), (signal.SIGTERM, EXIT_TERMINATED, "terminated")],
)
def test_a_signal_ends_a_command_in_order(home: Home, signum: int, status: int, word: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    time.sleep(0.2)
    process.send_signal(signum)
    out, err = process.communicate(timeout=120)
    assert process.returncode == status
    assert out == "cleaned up\n"
    assert f"evergreen: {word}; the same command resumes where it stopped" in err
    assert "Traceback" not in err


@pytest.mark.extended
def test_a_command_that_trains_executes_the_user_s_file_once(tmp_path: Path) -> None:
    """The run's copy is executed for training and replay, which begin with new globals, and once for other steps."""
    executed, recipe = tmp_path / "executed", tmp_path / "counted.py"
    recipe.write_text(
        "from evergreen import Digits, Recipe\n"
        f"open({str(executed)!r}, 'a').write(__file__ + chr(10))\n"
        "def build_model(shape, outputs):\n"
        "    from torch import nn\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))\n"
        "recipe = Recipe('counted', 'for a test', Digits(), build_model=build_model)\n"
    )
    settings = ("scaling.num_workers=0", "training.epochs=1", "gate.floor=0", "tracking.system_metrics=false")
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", "retrain", str(recipe)]
        + [word for setting in settings for word in ("--set", setting)],
        env=os.environ | {"EVERGREEN_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = executed.read_text().splitlines()
    (copy,) = (tmp_path / "home" / "runs" / "counted").glob("*/recipe/counted.py")
    assert files == [str(recipe), *[str(copy)] * 3]


def test_the_statuses_are_those_that_scripts_rely_on() -> None:
    numbers = [EXIT_OK, EXIT_BUG, EXIT_BAD_SETTING, EXIT_BAD_DATA, EXIT_TRAINING_FAILED, EXIT_RESOURCE,
               EXIT_HELD, EXIT_RETRY, EXIT_INTERRUPTED, EXIT_OUTPUT_CLOSED, EXIT_TERMINATED]  # fmt: skip
    assert numbers == [0, 1, 2, 3, 4, 5, 6, 75, 130, 141, 143]
