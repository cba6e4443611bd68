"""P13: metric points into MLflow's SQLite store. Side B calls `log_metric` for each value, as MLflow documents it."""

import time
from typing import Any

from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_NAMES = (
    "train/loss",
    "train/accuracy",
    "train/learning_rate",
    "speed/images_per_s",
    "speed/data_wait_share",
)


def evergreen(workspace: Workspace) -> Outcome:
    """A: the loop appends points to its file, and the driver sends them in batches."""
    from tasks.trackers.publisher import Publisher
    from training.attempts.fence import Fence
    from training.attempts.metrics import MetricsFile
    from training.storage.paths import RunPaths

    client, run_id = _open_run(workspace)
    steps = workspace.pick(2000, 1000, 50)
    paths = RunPaths(workspace.own / "run")
    paths.root.mkdir()
    written = MetricsFile(paths.metrics, steps, Fence.begin(paths))
    publisher = Publisher(lambda: (client, run_id), MetricsFile(paths.metrics), outage_s=60)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        written.append(step, 1, _values(step))
    appended = time.perf_counter() - began
    publisher.flush()
    seconds = time.perf_counter() - began
    _check(client, run_id, steps)
    return Outcome({"points_per_s": steps * len(_NAMES) / seconds, "ms_a_step": 1000 * appended / steps})


def log_metric(workspace: Workspace) -> Outcome:
    """B: `mlflow.log_metric` in the loop."""
    import mlflow

    client, run_id = _open_run(workspace)
    steps = workspace.pick(40, 30, 5)
    with mlflow.start_run(run_id=run_id):
        began = time.perf_counter()
        for step in range(1, steps + 1):
            for name, value in _values(step).items():
                mlflow.log_metric(name, value, step=step)
        seconds = time.perf_counter() - began
    _check(client, run_id, steps)
    return Outcome({"points_per_s": steps * len(_NAMES) / seconds, "ms_a_step": 1000 * seconds / steps})


def _values(step: int) -> dict[str, float]:
    return {name: step + number / 7 for number, name in enumerate(_NAMES)}


def _open_run(workspace: Workspace) -> tuple[Any, str]:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{workspace.own / 'mlflow.db'}")
    client = mlflow.MlflowClient()
    experiment = client.create_experiment("bench", artifact_location=(workspace.own / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    client.log_metric(run_id, "warm-up", 0.0)
    return client, run_id


def _check(client: Any, run_id: str, steps: int) -> None:
    """Check that the store holds every point with its value."""
    for name in _NAMES:
        points = client.get_metric_history(run_id, name)
        stored_values = {point.step: point.value for point in points}
        if len(points) != steps or any(stored_values[step] != _values(step)[name] for step in stored_values):
            raise RuntimeError(f"{name}: {len(points)} points in the store, {steps} were sent")


ROW = Row(
    id="P13",
    sides={"a": evergreen, "b": log_metric},
    claims=(
        Claim(
            "P13",
            "metric points per second / with one log_metric per value",
            of="points_per_s",
            unit="points/s",
            goal=50.0,
            at_least=True,
        ),
        Claim(
            "P13-ms",
            "time that a step with five values waits, in ms",
            of="ms_a_step",
            unit="ms",
            goal=0.2,
            at_least=False,
            compare=lambda a, _: a,
            geometric=False,
        ),
    ),
    pairs=6,
    quick=True,
)
