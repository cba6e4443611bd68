"""The automations that mark a run as Crashed when its process has died, on a real Prefect server."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from services import HEAD, ROOT, Services, answers

FILE = ROOT / "deployments" / "automation.yaml"
_DEPLOYMENTS = (ROOT / "prefect.yaml", ROOT / "deployments" / "cluster.yaml")
_WINDOW_S = 40  # longer than a busy machine takes for the start of the next try after a delay of a second
_FLOW = """
import sys
from pathlib import Path
from prefect import flow, tags

second = Path(sys.argv[2])

@flow(name=sys.argv[1], retries=1, retry_delay_seconds=int(sys.argv[3]))
def run():
    if not second.exists():
        second.touch()
        raise ConnectionError("no answer")

with tags("evergreen"):
    run()
"""


def automations() -> dict[str, dict[str, Any]]:
    entries = yaml.safe_load(FILE.read_text(encoding="utf-8"))["automations"]
    return {automation["name"]: automation for automation in entries}


@pytest.mark.parametrize("file", _DEPLOYMENTS, ids=lambda file: file.name)
def test_the_windows_leave_healthy_runs_alone(file: Path) -> None:
    common = yaml.safe_load(file.read_text(encoding="utf-8"))["definitions"]["common"]
    variables = common["work_pool"]["job_variables"]["env"]
    runs, retries = automations()["evergreen-dead-runs"], automations()["evergreen-dead-retries"]
    beats = int(variables["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"])
    # A server or its database may be away for some minutes, and the heartbeats of that time are lost.
    assert runs["trigger"]["within"] >= max(600, 4 * beats)
    delay = int(variables["PREFECT_FLOWS_DEFAULT_RETRY_DELAY_SECONDS"])
    assert retries["trigger"]["within"] >= delay + 600
    for automation in (runs, retries):
        assert f"{automation['trigger']['within']} seconds" in automation["actions"][0]["message"]


def begin(services: Services, name: str, delay_s: int) -> "subprocess.Popen[bytes]":
    """Start a process whose flow `name` fails once, and is tried again after `delay_s` seconds."""
    program = [sys.executable, "-c", _FLOW, name, str(services.folder / f"{name}.second"), str(delay_s)]
    with (services.folder / f"{name}.log").open("wb") as said:
        return subprocess.Popen(
            program, env=services.environment, cwd=services.folder, stdout=said, stderr=said
        )


def states(services: Services, name: str) -> list[str]:
    """Names of the states that the only run of flow `name` has had so far, the newest last."""
    return [str(state["name"]) for state in history(services, name)]


def history(services: Services, name: str) -> list[dict[str, Any]]:
    """States that the only run of flow `name` has had so far, the newest last."""
    user, _, password = services.environment["PREFECT_API_AUTH_STRING"].partition(":")
    api = services.environment["PREFECT_API_URL"]
    with httpx.Client(auth=(user, password), base_url=api, trust_env=False, timeout=60) as client:
        flow_runs = client.post("/flow_runs/filter", json={"flows": {"name": {"any_": [name]}}}).json()
        if not flow_runs:
            return []
        had = client.get("/flow_run_states/", params={"flow_run_id": flow_runs[0]["id"]}).json()
    return sorted(had, key=lambda state: str(state["timestamp"]))


@pytest.mark.slow
def test_a_run_that_dies_between_two_tries_is_marked_and_a_healthy_retry_is_not(services: Services) -> None:
    services.start("evergreen-prefect", host=HEAD, port=services.ports["prefect"])
    api = services.environment["PREFECT_API_URL"]
    services.wait_for("Prefect server", lambda: answers(f"{api}/health"))
    short = list(automations().values())
    for automation in short:
        automation["trigger"]["within"] = _WINDOW_S
    file = services.folder / "automation.json"
    file.write_text(json.dumps(short))
    services.prefect("automation", "create", "--from-file", str(file))

    healthy, dead = begin(services, "healthy", 1), begin(services, "dead", 3600)
    try:
        services.wait_for("wait for a try", lambda: states(services, "dead")[-1:] == ["AwaitingRetry"])
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        services.wait_for("end of the healthy run", lambda: states(services, "healthy")[-1:] == ["Completed"])
        services.wait_for("state Crashed", lambda: states(services, "dead")[-1:] == ["Crashed"])
        assert str(history(services, "dead")[-1]["message"]).startswith("the next try did not start")
        assert "AwaitingRetry" in states(services, "healthy")
        assert "Crashed" not in states(services, "healthy")
    finally:
        for process in (healthy, dead):
            process.kill()
            process.wait()
