"""The publisher of metric points, with a store of MLflow."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow import MlflowClient

from tasks.trackers.empty_stores import MLFLOW, copy_empty
from tasks.trackers.publisher import Publisher
from training.attempts import metrics
from training.attempts.metrics import MetricsFile


class Outage(MlflowClient):
    """A client whose first batches fail; with `arrives`, the store gets the batch, and only the answer is lost."""

    def __init__(self, uri: str, arrives: bool) -> None:
        super().__init__(uri)
        self.is_away, self.arrives = True, arrives

    def log_batch(self, run_id: str, *args: Any, **kwargs: Any) -> Any:
        if not self.is_away or self.arrives:
            super().log_batch(run_id, *args, **kwargs)
        if self.is_away:
            raise ConnectionError("MLflow is away")


@pytest.mark.parametrize("arrives", [False, True])
def test_a_point_that_is_computed_again_during_an_outage_is_in_mlflow_once(
    tmp_path: Path, arrives: bool
) -> None:
    file = MetricsFile(tmp_path / "run" / "metrics.jsonl", total_steps=3)
    file.path.parent.mkdir()
    copy_empty(MLFLOW, tmp_path / "mlflow.db")
    client = Outage(f"sqlite:///{tmp_path}/mlflow.db", arrives)
    run = client.create_run("0").info.run_id
    publisher = Publisher(lambda: (client, run), file, outage_s=10, interval_s=60)
    with publisher.running():
        for step in (1, 2):
            file.append(step, 1, {"loss": 1.0 / step})
        publisher._read_on()
        publisher._try_to_send()
        file.rewind(1)  # the attempt died, and the next one goes on from step 1
        file.append(2, 1, {"loss": 0.5, "accuracy": 0.75})
        publisher._read_on()
        client.is_away = False
    points = {name: client.get_metric_history(run, name) for name in ("loss", "accuracy")}
    assert {name: [(point.step, point.value) for point in history] for name, history in points.items()} == {
        "loss": [(1, 1.0), (2, 0.5)],
        "accuracy": [(2, 0.75)],
    }


def test_a_listener_gets_new_points_alone_whatever_their_time_and_a_tracker_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has points of an earlier process; the clock of the workers' machine may be behind."""
    file = MetricsFile(tmp_path / "run" / "metrics.jsonl", total_steps=3)
    file.path.parent.mkdir()
    copy_empty(MLFLOW, tmp_path / "mlflow.db")
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    run = client.create_run("0").info.run_id
    file.append(1, 1, {"loss": 1.0})
    shown, sent = list[int](), list[int]()
    monkeypatch.setattr(metrics, "time", SimpleNamespace(time=lambda: time.time() - 3600))
    publisher = Publisher(lambda: (client, run), file, outage_s=10)
    with publisher.running(
        lambda point: shown.append(point.step), trackers=[lambda point: sent.append(point.step)]
    ):
        file.append(2, 1, {"loss": 0.5})
    assert (shown, sent) == ([2], [1, 2])
    assert {point.step for point in client.get_metric_history(run, "loss")} == {1, 2}
