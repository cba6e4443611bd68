"""The publisher of metric points, with a store of MLflow."""

from pathlib import Path

from mlflow import MlflowClient

from tasks.trackers.empty_stores import MLFLOW, copy_empty
from tasks.trackers.publisher import Publisher
from training.attempts.metrics import MetricsFile


def test_a_point_that_is_computed_again_during_an_outage_is_in_mlflow_once(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "run" / "metrics.jsonl", total_steps=3)
    file.path.parent.mkdir()
    copy_empty(MLFLOW, tmp_path / "mlflow.db")
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    run = client.create_run("0").info.run_id
    away = True

    def begin() -> tuple[MlflowClient, str]:
        if away:
            raise ConnectionError("MLflow is away")
        return client, run

    publisher = Publisher(begin, file, outage_s=10, interval_s=60)
    with publisher.running():
        for step in (1, 2):
            file.append(step, 1, {"loss": 1.0 / step})
        publisher._read_on()
        file.rewind(1)  # the attempt died, and the next one goes on from step 1
        file.append(2, 1, {"loss": 0.5, "accuracy": 0.75})
        publisher._read_on()
        away = False
    points = {name: client.get_metric_history(run, name) for name in ("loss", "accuracy")}
    assert {name: [(one.step, one.value) for one in found] for name, found in points.items()} == {
        "loss": [(1, 1.0), (2, 0.5)],
        "accuracy": [(2, 0.75)],
    }
