"""The deployment files, and a run on a real cluster: two Ray nodes, a Prefect server, MLflow and a worker.

All five are started with the commands of `deployments/systemd`, on free ports and in a temporary folder.
"""

import json
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.importtools import import_object
from prefect.utilities.schema_tools import validate
from services import HEAD, NODE, ROOT, UNITS, Services, answers, free_port, status

from deployments.cluster import place
from training.attempts.heartbeat import read_beats
from training.recipe import load
from training.records import Release
from training.settings.overrides import resolve
from training.storage.paths import RunPaths
from training.storage.record_files import read_record
from training.telemetry import OFF

FILES = (ROOT / "prefect.yaml", ROOT / "deployments" / "cluster.yaml")


def _of(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


EACH = [
    pytest.param(deployment, id=deployment["name"])
    for file in FILES
    for deployment in _of(file)["deployments"]
]


def test_deployments_have_unique_names_and_steps_that_exist() -> None:
    assert len({param.id for param in EACH}) == len(EACH) > 0
    for file in FILES:
        steps = _of(file)["build"] + _of(file)["pull"]
        assert all(callable(import_object(name)) for step in steps for name in step)


@pytest.mark.parametrize("deployment", EACH)
def test_schedules_and_limits_are_explicit(deployment: dict[str, Any]) -> None:
    assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    assert deployment["enforce_parameter_schema"] is True
    assert deployment["work_pool"]["name"] == "evergreen"
    assert deployment["schedules"]
    for schedule in deployment["schedules"]:
        assert isinstance(schedule["active"], bool)
        assert schedule["slug"]
        assert ZoneInfo(schedule["timezone"])
        assert len(schedule["cron"].split()) == 5


@pytest.mark.parametrize("deployment", EACH)
def test_parameters_fit_the_flow_and_the_recipe(deployment: dict[str, Any]) -> None:
    flow = load_flow_from_entrypoint(deployment["entrypoint"])
    parameters = deployment["parameters"]
    schema = parameter_schema(flow).model_dump_for_openapi()
    validate(parameters, schema, raise_on_error=True)
    flow.validate_parameters(parameters)
    recipe, ref = load(parameters["recipe"])
    assert ref.name in deployment["tags"]
    assert resolve(recipe.settings, parameters["settings"])


@pytest.mark.parametrize("deployment", EACH)
def test_no_library_reports_its_use(deployment: dict[str, Any]) -> None:
    assert OFF.items() <= deployment["work_pool"]["job_variables"]["env"].items()
    lines = (UNITS / "evergreen.env").read_text(encoding="utf-8").splitlines()
    assert {f"{name}={value}" for name, value in OFF.items()} <= set(lines)


@pytest.mark.extended
def test_entrypoints_are_imported_without_torch_or_ray() -> None:
    entrypoints = sorted({param.values[0]["entrypoint"] for param in EACH})
    program = (
        "import sys; from prefect.flows import load_flow_from_entrypoint\n"
        f"for entrypoint in {entrypoints}: load_flow_from_entrypoint(entrypoint)\n"
        "print(sorted({'torch', 'ray', 'mlflow', 'pandas', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split("\n")[-2] == "[]"


def test_without_the_cluster_variables_nothing_is_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERGREEN_RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(
        SystemExit, match=r"(?s)not deployed.*EVERGREEN_TRACKING_URI.*EVERGREEN_HOME"
    ) as refusal:
        place()
    assert "EVERGREEN_RAY_ADDRESS" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "wrong", "why"),
    [
        ("EVERGREEN_RAY_ADDRESS", "10.0.0.1", "not host:port"),
        ("EVERGREEN_RAY_ADDRESS", "127.0.0.1:{unused}", "no Ray cluster answers"),
        ("EVERGREEN_TRACKING_URI", "sqlite:///mlflow.db", "http"),
        ("EVERGREEN_HOME", "/proc/evergreen", "not writable"),
    ],
)
def test_unusable_cluster_variables_are_refused(
    name: str, wrong: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((HEAD, 0)) as head:
        address = f"{HEAD}:{head.getsockname()[1]}"
        right = {
            "EVERGREEN_RAY_ADDRESS": address,
            "EVERGREEN_TRACKING_URI": "http://10.0.0.1:5000",
            "EVERGREEN_HOME": str(tmp_path),
        }
        for key, value in right.items():
            monkeypatch.setenv(key, value)
        assert place() == {
            "address": address,
            "tracking_uri": "http://10.0.0.1:5000",
            "home": str(tmp_path),
            "checkout": str(Path.cwd()),
        }
        monkeypatch.setenv(name, wrong.format(unused=free_port()))
        with pytest.raises(SystemExit, match=why):
            place()


def test_prefect_does_not_start_without_a_password() -> None:
    lines = (UNITS / "evergreen-prefect.service").read_text(encoding="utf-8").splitlines()
    (check,) = [line.removeprefix("ExecStartPre=") for line in lines if line.startswith("ExecStartPre=")]
    command = shlex.split(check)
    assert subprocess.run(command, env={}, check=False).returncode != 0
    assert subprocess.run(command, env={"PREFECT_SERVER_API_AUTH_STRING": "a:b"}, check=False).returncode == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    here = {
        "/opt/evergreen/.venv/bin": str(Path(sys.executable).parent),
        "WorkingDirectory=/opt/evergreen": f"WorkingDirectory={ROOT}",
        "/etc/evergreen.env": str(UNITS / "evergreen.env"),
        "/etc/evergreen-mlflow.ini": str(UNITS / "evergreen-mlflow.ini"),
    }
    for unit in UNITS.glob("*.service"):
        text = unit.read_text(encoding="utf-8")
        for installed, there in here.items():
            text = text.replace(installed, there)
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    units = [str(unit) for unit in sorted(tmp_path.iterdir())]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_deployment_has_the_home_that_a_tilde_names(services: Services) -> None:
    services.start("evergreen-prefect", host=HEAD, port=services.ports["prefect"])
    services.wait_for("Prefect server", lambda: answers(f"{services.environment['PREFECT_API_URL']}/health"))
    services.prefect("work-pool", "create", "evergreen", "--type", "process")
    services.environment |= {"EVERGREEN_HOME": "~/kept", "HOME": str(services.folder)}
    services.prefect("--no-prompt", "deploy", "--name", "digits")
    said = json.loads(services.prefect("deployment", "inspect", "retrain/digits", "--output", "json"))
    assert said["job_variables"]["env"]["EVERGREEN_HOME"] == str(services.folder / "kept")
    (pull,) = said["pull_steps"]
    assert pull["prefect.deployments.steps.set_working_directory"]["directory"] == str(ROOT)


def start_all(services: Services) -> None:
    """Start the servers, the worker, and a Ray cluster of two nodes with one CPU each."""
    folder, ports, places = services.folder, services.ports, services.environment
    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    services.start("evergreen-prefect", host=HEAD, port=ports["prefect"])
    services.start(
        "evergreen-ray-head",
        port=ports["ray"],
        ray_client_server_port=ports["client"],
        temp_dir=folder / "head",
        **small,
    )
    said = folder / "evergreen-ray-head.log"
    services.wait_for("Ray head", lambda: b"Ray runtime started" in said.read_bytes())
    services.start("evergreen-ray-node", node_ip_address=NODE, temp_dir=folder / "node", **small)
    services.wait_for("Prefect server", lambda: answers(f"{places['PREFECT_API_URL']}/health"))
    store = f"sqlite:///{folder}/mlflow.db"
    services.start("evergreen-mlflow", host=HEAD, port=ports["mlflow"], backend_store_uri=store)
    services.prefect("work-pool", "create", "evergreen", "--type", "process")
    services.start("evergreen-worker")
    services.wait_for("MLflow", lambda: answers(f"{places['EVERGREEN_TRACKING_URI']}/health"))


def nodes_of(services: Services, pid: int) -> list[str]:
    """Names of the nodes whose logs contain that worker process."""
    files = services.folder.glob(f"*/session_2*/logs/python-core-worker-*_{pid}.log")
    return [file.relative_to(services.folder).parts[0] for file in files]


@pytest.mark.slow
def test_a_run_on_a_cluster_of_two_nodes(services: Services) -> None:
    start_all(services)
    for server in (
        f"{services.environment['PREFECT_API_URL']}/flows/",
        f"{services.environment['EVERGREEN_TRACKING_URI']}/api/2.0/mlflow/experiments/get?experiment_id=0",
    ):
        assert status(server) == 401
    services.prefect("--no-prompt", "deploy", "--all")
    services.prefect("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/cluster.yaml")
    services.prefect("deployment", "run", "retrain/digits-cluster", "--watch")  # fails unless Completed

    (run,) = (services.home / "runs" / "digits").iterdir()
    release = read_record(run / "release.json", Release, run.name)
    assert release.version == "1"
    beats = read_beats(RunPaths(run))
    assert sorted(nodes_of(services, beat.pid) for beat in beats) == [["head"], ["node"]]
    assert len(list(services.folder.glob("head/session_2*/logs/python-core-driver-*.log"))) == 1
    assert len(list((services.home / "mlflow-artifacts").rglob("MLmodel"))) == 1
    assert not (services.home / "mlflow.db").exists()
