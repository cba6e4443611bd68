"""A training that could not be finished is refused before the first step."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlparse

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos import databricks_pb2
from small_runs import write_recipe

from flows.retrain import retrain
from tasks import preflight
from tasks.registry.reign import anchor_of
from tasks.trackers.mlflow_run import check_version, connect
from training.errors import DataError, SettingError, StopRequestedError, TrainingError
from training.plan import RunPlan
from training.records import DatasetVersion
from training.storage.paths import Home, RunPaths

pytestmark = pytest.mark.usefixtures("prefect_harness")

SETTINGS: dict[str, Any] = {
    "scaling": {"num_workers": 0, "use_gpu": "no"},
    "training": {"epochs": 1},
    "tracking": {"system_metrics": False},
    "gate": {"floor": 0.0},
    "data": {"max_train_rows": 300, "max_test_rows": 100},
}


def run(recipe: str, **data: Any) -> Any:
    form = SETTINGS | {"data": SETTINGS["data"] | data}
    return retrain(recipe, form)


@pytest.mark.extended
def test_a_champion_of_another_shape_is_refused_before_training(home: Home, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    assert run(recipe).alias == "champion"
    with pytest.raises(SettingError, match=r"takes images of \(1, 8, 8\).*the data are \(1, 12, 12\)"):
        run(recipe, image_size=12)
    assert len(list(home.runs("plain").glob("*/attempts.jsonl"))) == 1


@pytest.mark.extended
def test_a_damaged_champion_is_refused_before_training_and_can_be_given_up(
    home: Home, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path)
    assert run(recipe).alias == "champion"
    client = connect(None, home)
    file = Path(urlparse(client.get_model_version_download_uri("plain", "1")).path) / "data" / "model.pt2"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"plain version 1.*delete the alias champion on the model's page"):
        run(recipe, validation_share=0.3)
    assert len(list(home.runs("plain").glob("*/attempts.jsonl"))) == 1
    client.delete_registered_model_alias("plain", "champion")
    assert run(recipe, validation_share=0.3).alias == "champion"


@pytest.mark.extended
def test_a_damaged_anchor_is_refused_before_training_and_can_be_given_up(home: Home, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    assert run(recipe).alias == "champion"
    lax = {"gate": {"floor": 0.0, "policy": "not_worse", "margin": 0.99}}

    def retrained(share: float) -> Any:
        return retrain(recipe, SETTINGS | lax | {"data": SETTINGS["data"] | {"validation_share": share}})

    second = retrained(0.3)
    client = connect(None, home)
    assert (second.version, second.alias, anchor_of(client, "plain", "2")) == ("2", "champion", "1")
    file = Path(urlparse(client.get_model_version_download_uri("plain", "1")).path) / "data" / "model.pt2"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"version 1 is the anchor.*Or delete version 1 in MLflow"):
        retrained(0.35)
    assert len(list(home.runs("plain").glob("*/attempts.jsonl"))) == 2
    client.delete_registered_model_alias("plain", "previous")
    client.delete_model_version("plain", "1")
    assert retrained(0.35).alias == "champion"


@pytest.mark.extended
def test_a_deleted_experiment_is_refused_before_training(home: Home, tmp_path: Path) -> None:
    client = connect(None, home)
    number = client.create_experiment("plain", artifact_location=home.mlflow_artifacts.as_uri())
    client.delete_experiment(number)
    with pytest.raises(SettingError, match=rf"'plain' was deleted.*restore --experiment-id {number}"):
        run(write_recipe(tmp_path))
    assert not list(home.runs("plain").glob("*/attempts.jsonl"))
    client.restore_experiment(number)
    assert run(write_recipe(tmp_path)).alias == "champion"


def test_a_model_that_can_not_be_exported_is_refused_before_training(home: Home, tmp_path: Path) -> None:
    model = (
        "type('Moody', (nn.Linear,), {'forward': lambda self, x: nn.Linear.forward(self, x.flatten(1)) "
        "* (1 if x.sum() > 0 else 2)})(64, classes)"
    )
    with pytest.raises(TrainingError, match="its model can't be exported"):
        run(write_recipe(tmp_path, model, name="moody"))
    assert not list(home.runs("moody").glob("*/attempts.jsonl"))


def test_a_model_that_would_not_be_loaded_again_is_refused_before_training(
    home: Home, tmp_path: Path
) -> None:
    """Operations of other libraries would have to be imported before the model could be loaded."""
    boxes = "__import__('torchvision').ops.nms(x.flatten(1)[:, :4], x.flatten(1)[:, 0], 0.5).sum()"
    model = (
        "type('Foreign', (nn.Linear,), {'forward': lambda self, x: nn.Linear.forward(self, x.flatten(1)) "
        f"+ {boxes}}})(64, classes)"
    )
    with pytest.raises(TrainingError, match=r"torch\.ops\.torchvision\.nms"):
        run(write_recipe(tmp_path, model, name="foreign"))
    assert not list(home.runs("foreign").glob("*/attempts.jsonl"))


def plan_on_ray(root: Path) -> RunPlan:
    """The parts of a plan that the check during a training reads."""
    scaling = SimpleNamespace(num_workers=2)
    made = SimpleNamespace(settings=SimpleNamespace(scaling=scaling), paths=RunPaths(root))
    return cast(RunPlan, made)


def checked(plan: RunPlan, train: Callable[[], None]) -> None:
    with preflight.checked_alongside(plan, cast(DatasetVersion, None)):
        train()


def test_a_training_that_fails_while_the_check_runs_ends_with_the_error_of_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training_failed = threading.Event()

    def check(_plan: RunPlan, _version: DatasetVersion) -> None:
        assert training_failed.wait(60)
        raise TrainingError("its model can't be exported")

    monkeypatch.setattr(preflight, "preflight", check)

    def train() -> None:
        training_failed.set()
        raise DataError("the forward pass failed")

    with pytest.raises(TrainingError, match="exported") as raised:
        checked(plan_on_ray(tmp_path), train)
    assert isinstance(raised.value.__cause__, DataError)
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_fails_asks_the_workers_to_stop_until_they_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(_plan: RunPlan, _version: DatasetVersion) -> None:
        raise TrainingError("its model can't be exported")

    monkeypatch.setattr(preflight, "preflight", check)
    plan = plan_on_ray(tmp_path)

    def train() -> None:
        for _ in range(2):  # a new attempt removes the stop request of an earlier attempt
            deadline = time.monotonic() + 60
            while not plan.paths.stop.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            plan.paths.stop.unlink()
        raise StopRequestedError("training was stopped")

    with pytest.raises(TrainingError, match="exported"):
        checked(plan, train)
    assert not plan.paths.stop.exists()


def test_a_server_older_than_mlflow_3_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a server answers a request for logged models with an unknown address."""
    client = connect(None, home)
    client.create_experiment("digits", artifact_location=home.mlflow_artifacts.as_uri())
    plan = cast(
        RunPlan,
        SimpleNamespace(
            recipe=SimpleNamespace(name="digits"),
            settings=SimpleNamespace(tracking=SimpleNamespace(experiment=None, uri="http://old:5000")),
        ),
    )
    check_version(client, plan)

    def unknown(*_ids: object, **_options: object) -> None:
        raise MlflowException("no such address", databricks_pb2.ENDPOINT_NOT_FOUND)

    monkeypatch.setattr(client, "search_logged_models", unknown)
    with pytest.raises(
        SettingError, match="http://old:5000 does not know logged models, so it is older than MLflow 3"
    ):
        check_version(client, plan)
