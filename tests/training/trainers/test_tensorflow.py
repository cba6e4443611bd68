"""A Keras model trained by TensorFlow under Evergreen, in this process."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from boosted_tables import outcome
from network_runs import crash_at, rows_of_steps, small_job
from small_runs import job_for, tiny_settings
from tensorflow_runs import write_tensorflow
from trainer_contract import TrainerContract

from evergreen import TensorFlow
from training.attempts.history import read_attempts
from training.attempts.job import TrainingJob
from training.errors import SettingError, TrainingError
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="run by: make test-tensorflow"),
]


class TestTensorFlow(TrainerContract):
    @pytest.fixture(autouse=True)
    def _recipe(self, small_version: DatasetVersion, tmp_path: Path) -> None:
        self.version, self.recipe = small_version, write_tensorflow(tmp_path / "recipe")

    def job(self, home: Home) -> TrainingJob:
        return small_job(home, self.version, self.recipe)


def test_each_step_has_the_rows_of_the_pytorch_loop(
    home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tiny_settings(training={"epochs": 3, "global_batch_size": 40}, checkpoint={"replay": False})
    expected = rows_of_steps(job_for(home, small_version, own), monkeypatch)
    recipe = write_tensorflow(tmp_path / "recipe")
    assert rows_of_steps(small_job(home, small_version, recipe), monkeypatch) == expected


@pytest.mark.parametrize("part", [0.2, 0.6, 0.9])
def test_a_crash_at_any_step_of_one_worker_changes_no_bit(
    part: float, home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_tensorflow(tmp_path / "recipe")

    def job(where: Home) -> TrainingJob:
        own = {"global_batch_size": 40}
        return small_job(where, small_version, recipe, training=own, checkpoint={"every_steps": 3})

    calm = job(Home(tmp_path / "calm"))
    trained = launch(calm)
    hit = job(home)
    crash_at(part * trained.steps, hit, monkeypatch)
    assert outcome(hit, launch(hit)) == outcome(calm, trained)
    assert read_attempts(hit.paths)[1].first_step > 0


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("layers.Dense(outputs)", 'layers.Dense(outputs, activation="softmax")', "ends with softmax"),
        ("layers.Dense(outputs)", "layers.Dense(outputs + 1)", "needs \\(2, "),
        ("layers.Dense(outputs)", 'layers.Dense(outputs, kernel_regularizer="l2")', "losses of its own"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    before: str, after: str, message: str, home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = write_tensorflow(tmp_path / "recipe", (before, after))
    with pytest.raises(TrainingError, match=message):
        launch(small_job(home, small_version, recipe))


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_weights_may_decay_by_nothing(
    optimizer: str, home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = write_tensorflow(tmp_path / "recipe")
    job = small_job(home, small_version, recipe, training={"optimizer": optimizer, "weight_decay": 0.0})
    assert launch(job).steps


def test_an_argument_of_model_fit_is_refused_with_its_name_here() -> None:
    with pytest.raises(SettingError, match="use global_batch_size"):
        TensorFlow(print, batch_size=32)
