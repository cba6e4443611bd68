"""A deployment's run that is cancelled, or whose real worker dies: the run ends or continues as it should."""

import base64
import json
import signal
import time
import urllib.request
from typing import Any

import psutil
import pytest
from services import HEAD, Services, answers

from training.attempts.heartbeat import read_beats
from training.attempts.history import read_attempts
from training.attempts.metrics import MetricsFile
from training.records import Release
from training.storage.paths import RunPaths
from training.storage.record_files import read_record

_RECIPE = """
from training.recipe import Recipe
from training.data.sources.digits import Digits

def build_model(shape, classes):
    import time
    from torch import nn

    class Slow(nn.Sequential):
        def forward(self, images):
            if self.training:
                time.sleep(0.3)
            return super().forward(images)

    return Slow(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

recipe = Recipe("slow", "for a test", Digits(), build_model=build_model)
"""
_SETTINGS = {
    "training": {"epochs": 24},
    "data": {"max_train_rows": 1000},
    "scaling": {"num_workers": 1, "use_gpu": "no"},
    "ray": {"num_cpus": 1, "object_store_mb": 80},
    "checkpoint": {"every_s": 1000.0},
    "tracking": {"system_metrics": False, "log_every_steps": 1},
    "gate": {"floor": 0.0},
}
_CANCEL_S = 60.0  # time limit for a cancelled run to release its workers
pytestmark = pytest.mark.slow


class Deployed:
    """Prefect's server, a worker, and the deployment `retrain/digits` for a slow recipe."""

    def __init__(self, services: Services):
        self.services = services
        self.recipe = services.folder / "slow.py"
        self.recipe.write_text(_RECIPE)
        services.start("evergreen-prefect", host=HEAD, port=services.ports["prefect"])
        api = services.environment["PREFECT_API_URL"]
        services.wait_for("Prefect server", lambda: answers(f"{api}/health"))
        services.prefect("work-pool", "create", "evergreen", "--type", "process")
        services.prefect("--no-prompt", "deploy", "--name", "digits")
        self.worker = services.start("evergreen-worker")

    def trigger(self) -> str:
        """Start a flow run; returns its id."""
        options = ["-p", f"recipe={json.dumps(str(self.recipe))}", "-p", f"settings={json.dumps(_SETTINGS)}"]
        said = self.services.prefect("deployment", "run", "retrain/digits", *options)
        (run_id,) = {
            word for word in said.replace("/", " ").split() if len(word) == 36 and word.count("-") == 4
        }
        return run_id

    def api(self, path: str, body: object = None) -> Any:
        """Answer of Prefect's API, without the seconds that the command `prefect` takes."""
        secret = base64.b64encode(self.services.environment["PREFECT_API_AUTH_STRING"].encode()).decode()
        asked = urllib.request.Request(
            f"{self.services.environment['PREFECT_API_URL']}/{path}",
            headers={"Authorization": f"Basic {secret}", "Content-Type": "application/json"},
            data=None if body is None else json.dumps(body).encode(),
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.load(answer)

    def state(self, run: str) -> str:
        return str(self.api(f"flow_runs/{run}")["state"]["type"])

    def states(self, run: str) -> list[str]:
        """Types of all states that the flow run has had."""
        return [str(state["type"]) for state in self.api(f"flow_run_states/?flow_run_id={run}")]

    def pid(self, run: str) -> int:
        """The process of the flow run; 0 before it starts."""
        return int((self.api(f"flow_runs/{run}")["infrastructure_pid"] or "0").rpartition(":")[2])

    def run_paths(self) -> RunPaths:
        (folder,) = (self.services.home / "runs" / "slow").iterdir()
        return RunPaths(folder)

    def wait_for_step(self, step: int) -> RunPaths:
        def reached() -> bool:
            files = (self.services.home / "runs" / "slow").glob("*/metrics.jsonl")
            return any(point.step >= step for file in files for point in MetricsFile(file).read())

        self.services.wait_for(f"step {step}", reached)
        return self.run_paths()

    def wait_for_state(self, run: str, state: str, longest_s: float) -> None:
        deadline = time.monotonic() + longest_s
        while (now := self.state(run)) != state:
            assert time.monotonic() < deadline, f"{now} instead of {state}\n{self.services.logs()}"
            time.sleep(1)


@pytest.fixture
def deployed(services: Services) -> Deployed:
    return Deployed(services)


def test_a_cancelled_run_frees_its_workers_and_the_next_run_resumes(deployed: Deployed) -> None:
    run = deployed.trigger()
    paths = deployed.wait_for_step(5)
    workers = [psutil.Process(beat.pid) for beat in read_beats(paths)]
    assert workers
    began = time.monotonic()
    deployed.services.prefect("flow-run", "cancel", run)
    _, alive = psutil.wait_procs(workers, timeout=_CANCEL_S)
    assert not alive, f"still there after {time.monotonic() - began:.0f} s"
    deployed.wait_for_state(run, "CANCELLED", _CANCEL_S)
    assert "CRASHED" not in deployed.states(run)
    assert not paths.model.exists(), "the run was over before it was cancelled"

    second = deployed.trigger()
    deployed.wait_for_state(second, "COMPLETED", 500)
    entered = read_attempts(paths)[-1].first_step
    assert entered >= 5, "begun again, where a checkpoint was due at the cancellation"
    assert read_record(paths.release, Release, paths.root.name).version == "1"


def test_a_run_that_is_cancelled_before_its_flow_begins_is_never_crashed(deployed: Deployed) -> None:
    run = deployed.trigger()
    deployed.services.wait_for("the run's process", lambda: deployed.pid(run) > 0)
    pid = deployed.pid(run)
    assert deployed.state(run) == "PENDING", "the flow has begun already"
    deployed.api(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    deployed.wait_for_state(run, "CANCELLED", _CANCEL_S)
    assert not psutil.pid_exists(pid)
    assert not {"CRASHED", "RUNNING"} & set(deployed.states(run))


def test_a_run_continues_after_its_worker_was_killed(deployed: Deployed) -> None:
    run = deployed.trigger()
    paths = deployed.wait_for_step(5)
    deployed.worker.send_signal(signal.SIGKILL)
    deployed.worker.wait()
    deployed.wait_for_state(run, "COMPLETED", 500)
    assert len(read_attempts(paths)) == 1
    assert read_record(paths.release, Release, paths.root.name).version == "1"
