"""A model trained by the Trainer of Transformers under Evergreen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from boosted_tables import bundled, outcome
from network_runs import crash_at, rows_of_steps, small_job
from small_runs import job_for, tiny_settings
from trainer_contract import TrainerContract
from transformers_runs import write_transformers

from evergreen import Transformers
from training.attempts.history import read_attempts
from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile
from training.checkpoints.weights import load_weights
from training.data.dataset import open_columns
from training.errors import SettingError, TrainingError
from training.records import DatasetVersion
from training.settings.schema import ScalingSettings, Settings
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.rows import order_of
from training.trainers.transformers.settings import TransformersSettings

pytest.importorskip("transformers", reason="install the extras by: make setup EXTRAS=all")
pytestmark = pytest.mark.frameworks


class TestTransformers(TrainerContract):
    @pytest.fixture(autouse=True)
    def _recipe(self, small_version: DatasetVersion, tmp_path: Path) -> None:
        self.version, self.recipe = small_version, write_transformers(tmp_path / "recipe")

    def job(self, home: Home) -> TrainingJob:
        return small_job(home, self.version, self.recipe)


def test_each_step_has_the_rows_of_the_pytorch_loop(
    home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tiny_settings(training={"epochs": 3, "global_batch_size": 40}, checkpoint={"replay": False})
    expected = rows_of_steps(job_for(home, small_version, own), monkeypatch)
    recipe = write_transformers(tmp_path / "recipe")
    once = {"replay": False}
    assert rows_of_steps(small_job(home, small_version, recipe, checkpoint=once), monkeypatch) == expected


@pytest.mark.parametrize(
    ("part", "optim", "passes"),
    [(0.2, "adamw_torch_fused", 1), (0.6, "adafactor", 1), (0.9, "adamw_torch_fused", 2)],
)
def test_a_crash_at_any_step_changes_no_bit(
    part: float,
    optim: str,
    passes: int,
    home: Home,
    tmp_path: Path,
    small_version: DatasetVersion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = write_transformers(tmp_path / "recipe")
    own = {"global_batch_size": 40, "optim": optim, "gradient_accumulation_steps": passes}

    def job(where: Home) -> TrainingJob:
        return small_job(where, small_version, recipe, training=own, checkpoint={"every_steps": 3})

    calm = job(Home(tmp_path / "calm"))
    trained = launch(calm)
    assert trained.reproducible, trained.reproducible_reason
    hit = job(home)
    crash_at(part * trained.steps, hit, monkeypatch)
    assert outcome(hit, launch(hit)) == outcome(calm, trained)
    assert read_attempts(hit.paths)[1].first_step > 0


def test_the_schedule_covers_all_steps_also_after_a_crash(
    home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_transformers(tmp_path / "recipe")
    job = small_job(
        home, small_version, recipe, tracking={"log_every_steps": 1}, training={"global_batch_size": 40}
    )
    crash_at(10, job, monkeypatch)
    steps = launch(job).steps
    points = MetricsFile(job.paths.metrics).read()
    rates = [point.values["train/learning_rate"] for point in points if "train/loss" in point.values]
    warm = -(-steps // 5)
    assert len(rates) == steps
    assert rates == pytest.approx(
        [2e-3 * (step / warm if step < warm else (steps - step) / (steps - warm)) for step in range(steps)]
    )


def test_passes_give_the_gradient_of_one_pass(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    """Also in the last step of an epoch, which has fewer rows: their losses are added up, not averaged twice."""
    plain = ("hidden_dropout_prob=0.1", "hidden_dropout_prob=0.0")
    recipe = write_transformers(tmp_path / "recipe", plain)
    weights = []
    for passes in (1, 3):
        own = {"global_batch_size": 90, "optim": "sgd", "gradient_accumulation_steps": passes}
        trained = launch(small_job(Home(tmp_path / str(passes)), small_version, recipe, training=own))
        weights.append(load_weights(Path(trained.weights)))
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-6) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_max_steps_ends_the_training_inside_an_epoch(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = write_transformers(tmp_path / "recipe")
    job = small_job(home, small_version, recipe, training={"global_batch_size": 40, "max_steps": 7})
    trained = launch(job)
    assert (trained.steps, trained.history[-1].step) == (7, 7)


def test_a_plain_module_learns_a_regression(home: Home, tmp_path: Path) -> None:
    recipe = write_transformers(
        tmp_path / "recipe",
        ("Augmentation, Digits", "BundledTable, Regression"),
        ("Digits(), trainer", 'BundledTable("diabetes"), Regression(), trainer'),
        (", augmentation=Augmentation(shift=1)", ""),
        (
            "    from transformers",
            "    import torch; return torch.nn.Linear(shape[0], 1)\n    from transformers",
        ),
    )
    job = small_job(
        home, bundled(home, "regression"), recipe, training={"global_batch_size": 40, "epochs": 20}
    )
    trained = launch(job)
    assert trained.history[-1].validation_score < 0.9 * open_columns(job.dataset, "train").targets.std()


def test_a_model_without_head_is_refused(home: Home, tmp_path: Path, small_version: DatasetVersion) -> None:
    recipe = write_transformers(tmp_path / "recipe", ("ViTForImageClassification", "ViTModel"))
    with pytest.raises(TrainingError, match=r"a BaseModelOutput.*, has no logits; build a model with a head"):
        launch(small_job(home, small_version, recipe))


def test_too_few_rows_for_the_passes_are_refused(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = write_transformers(tmp_path / "recipe")
    own = {"global_batch_size": 4000, "gradient_accumulation_steps": 4000}
    with pytest.raises(
        TrainingError, match=r"training.gradient_accumulation_steps: the last step .* use fewer"
    ):
        launch(small_job(home, small_version, recipe, training=own))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_short_last_step_has_a_row_for_each_pass(workers: int) -> None:
    own = TransformersSettings(global_batch_size=48, gradient_accumulation_steps=16)
    settings = Settings(training=own, scaling=ScalingSettings(num_workers=workers))
    for rows in range(48, 200):
        order = order_of(settings, rows, 48)
        sizes = [stop - start for start, stop in map(order.bounds, range(order.steps_per_epoch))]
        assert sum(sizes) == rows
        assert min(sizes) >= 16 * max(1, workers)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_train_epochs": 3}, "num_train_epochs is not an argument here; use epochs"),
        ({"report_to": "wandb"}, "report_to is not an argument here; use settings=.*tracking"),
        ({"learning_rte": 1e-3}, "no setting learning_rte; did you mean learning_rate"),
        ({"optim": "adamw_bnb_8bit"}, "optim: .*adamw_torch_fused"),
    ],
)
def test_an_argument_that_the_trainer_does_not_take_is_refused(
    given: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        Transformers(torch.nn.Linear, **given)


def test_a_training_writes_nothing_to_the_user_s_and_the_working_directory(
    tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = write_transformers(tmp_path / "recipe")
    user, work = tmp_path / "user", tmp_path / "work"
    user.mkdir()
    work.mkdir()
    code = (
        "import sys; from pathlib import Path; from network_runs import small_job; "
        "from training.records import DatasetVersion; from training.storage.paths import Home; "
        "from training.supervision.launch import launch; "
        f"version = DatasetVersion.model_validate_json({small_version.model_dump_json()!r}); "
        f"print(launch(small_job(Home(Path({str(tmp_path / 'home')!r})), version, {recipe!r})).steps)"
    )
    own = {"HOME": str(user), "PYTHONPATH": os.pathsep.join(sys.path)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=work, env=kept | own, capture_output=True, text=True, check=True
    )
    assert int(done.stdout.splitlines()[-1]) > 0
    assert [path for folder in (user, work) for path in folder.rglob("*")] == []
