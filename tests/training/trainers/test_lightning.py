"""A LightningModule trained by Lightning's Trainer under Evergreen."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from boosted_tables import bundled, outcome
from lightning_runs import EACH_STEP, NUMPY, PLATEAU, changed, write_datamodule, write_lightning
from network_runs import crash_at, rows_of_steps, small_job
from small_runs import job_for, tiny_settings
from trainer_contract import TrainerContract

from training.attempts.history import read_attempts
from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile
from training.data.dataset import open_columns
from training.errors import SettingError, TrainingError
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch

pytest.importorskip("lightning", reason="install the extras by: make setup EXTRAS=all")
pytestmark = pytest.mark.frameworks


class TestLightning(TrainerContract):
    @pytest.fixture(autouse=True)
    def _recipe(self, small_version: DatasetVersion, tmp_path: Path) -> None:
        self.version, self.recipe = small_version, write_lightning(tmp_path / "recipe")

    def job(self, home: Home) -> TrainingJob:
        return small_job(home, self.version, self.recipe)


def test_each_step_has_the_rows_of_the_pytorch_loop(
    home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tiny_settings(training={"epochs": 3, "global_batch_size": 40}, checkpoint={"replay": False})
    expected = rows_of_steps(job_for(home, small_version, own), monkeypatch)
    recipe = write_lightning(tmp_path / "recipe")
    once = {"replay": False}
    assert rows_of_steps(small_job(home, small_version, recipe, checkpoint=once), monkeypatch) == expected


@pytest.mark.parametrize("schedule", [PLATEAU, EACH_STEP, NUMPY], ids=["plateau", "step", "numpy"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_crash_at_any_step_changes_no_bit(
    schedule: str,
    part: float,
    home: Home,
    tmp_path: Path,
    small_version: DatasetVersion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = write_lightning(tmp_path / "recipe", schedule)
    every = {"every_steps": 3}
    calm = small_job(Home(tmp_path / "calm"), small_version, recipe, checkpoint=every)
    trained = launch(calm)
    job = small_job(home, small_version, recipe, checkpoint=every)
    assert trained.reproducible, trained.reproducible_reason
    crash_at(part * trained.steps, job, monkeypatch)
    assert outcome(job, launch(job)) == outcome(calm, trained)
    assert read_attempts(job.paths)[1].first_step > 0


@pytest.mark.parametrize("part", [0.5, 0.9])
def test_hooks_of_the_start_of_an_epoch_change_a_resumed_training_once(
    part: float, home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that resumes inside an epoch calls them again: with the state after the first call."""
    body = """self.average.add_(1.0)
        for group in self.optimizers().param_groups:
            group["lr"] *= 0.9"""
    recipe = changed(
        write_lightning(tmp_path / "recipe"),
        ("    def configure_opt", _hook("on_train_epoch_start(self)", body)),
    )
    calm = small_job(Home(tmp_path / "calm"), small_version, recipe, checkpoint={"every_steps": 2})
    trained = launch(calm)
    assert trained.reproducible, trained.reproducible_reason
    job = small_job(home, small_version, recipe, checkpoint={"every_steps": 2})
    crash_at(part * trained.steps, job, monkeypatch)
    assert outcome(job, launch(job)) == outcome(calm, trained)
    assert read_attempts(job.paths)[1].first_step % (trained.steps / 3) > 0


def test_hooks_of_the_start_of_an_epoch_follow_that_of_the_training(
    home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = changed(
        write_lightning(tmp_path / "recipe"),
        ("    def configure_opt", _hook("on_train_start(self)", "self.began = 1.0")),
        ("    def configure_opt", _hook("on_train_epoch_start(self)", "self.began += 1.0")),
    )
    calm = small_job(Home(tmp_path / "calm"), small_version, recipe, checkpoint={"every_steps": 2})
    trained = launch(calm)
    assert trained.reproducible, trained.reproducible_reason
    job = small_job(home, small_version, recipe, checkpoint={"every_steps": 2})
    crash_at(0.5 * trained.steps, job, monkeypatch)
    assert outcome(job, launch(job)) == outcome(calm, trained)
    assert read_attempts(job.paths)[1].first_step % (trained.steps / 3) > 0


@pytest.mark.parametrize("part", [0.5, 0.9])
def test_weights_that_a_hook_freezes_once_stay_frozen(
    part: float, home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "if self.current_epoch == 1:\n            next(self.parameters()).requires_grad_(False)"
    recipe = changed(
        write_lightning(tmp_path / "recipe"),
        ("    def configure_opt", _hook("on_train_epoch_start(self)", body)),
    )
    calm = small_job(Home(tmp_path / "calm"), small_version, recipe, checkpoint={"every_steps": 2})
    trained = launch(calm)
    job = small_job(home, small_version, recipe, checkpoint={"every_steps": 2})
    crash_at(part * trained.steps, job, monkeypatch)
    assert outcome(job, launch(job)) == outcome(calm, trained)
    other = small_job(Home(tmp_path / "other"), small_version, write_lightning(tmp_path / "plain"))
    assert launch(other).weights_digest != trained.weights_digest


def test_the_hooks_of_a_datamodule_are_called_and_its_state_is_restored(
    home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, every = write_datamodule(tmp_path / "recipe"), {"every_steps": 3}
    calm = small_job(Home(tmp_path / "calm"), small_version, recipe, checkpoint=every)
    trained = launch(calm)
    without = small_job(Home(tmp_path / "without"), small_version, write_lightning(tmp_path / "plain"))
    assert launch(without).weights_digest != trained.weights_digest
    job = small_job(home, small_version, recipe, checkpoint=every)
    crash_at(0.6 * trained.steps, job, monkeypatch)
    assert outcome(job, launch(job)) == outcome(calm, trained)
    assert read_attempts(job.paths)[1].first_step > 0


def test_state_that_no_checkpoint_holds_is_found_by_the_replay_check(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = changed(write_datamodule(tmp_path / "recipe"), ("def state_dict(self)", "def forgotten(self)"))
    trained = launch(small_job(home, small_version, recipe, checkpoint={"every_steps": 3}))
    assert trained.reproducible is False
    assert "differs after step 4 in average, layers.1.weight" in trained.reproducible_reason


def test_a_datamodule_of_another_package_is_refused(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = write_datamodule(tmp_path / "recipe")
    file = Path(recipe)
    file.write_text(file.read_text().replace("return Noise()", "return object()"))
    with pytest.raises(SettingError, match=r"build_datamodule must return a LightningDataModule .* object"):
        launch(small_job(home, small_version, recipe))


def test_learning_rates_and_logged_metrics_are_in_the_points(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    job = small_job(
        home, small_version, write_lightning(tmp_path / "recipe"), tracking={"log_every_steps": 1}
    )
    trained = launch(job)
    points = MetricsFile(job.paths.metrics).read()
    rates = [point.values["train/learning_rate"] for point in points if "train/loss" in point.values]
    assert rates[0] == 5e-3
    assert rates[-1] < 5e-3  # the plateau lowers the rate after an epoch
    names = {name for point in points for name in point.values}
    assert {"lightning/own_loss", "lightning/val_loss"} <= names
    own = [point.values["lightning/own_loss"] for point in points if "train/loss" in point.values]
    losses = [point.values["train/loss"] for point in points if "train/loss" in point.values]
    assert own == pytest.approx(losses, rel=1e-5)
    assert trained.history[-1].validation_score > 0.5


def test_a_step_that_does_not_call_the_module_itself_is_measured_too(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    trained = {
        call: launch(
            small_job(
                Home(tmp_path / call),
                small_version,
                write_lightning(tmp_path / f"recipe-{call}", call=call),
            )
        )
        for call in ("self", "self.forward", "self.layers")
    }
    assert len({run.weights_digest for run in trained.values()}) == 1
    own, forward, layers = (run.history[-1].train_score for run in trained.values())
    assert own == forward != layers  # with dropout, and without
    assert min(own, layers) > 0.3  # 0.1 by chance


def test_max_steps_ends_the_training_inside_an_epoch(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = write_lightning(tmp_path / "recipe")
    job = small_job(home, small_version, recipe, training={"global_batch_size": 40, "max_steps": 7})
    trained = launch(job)
    assert trained.steps == 7
    assert trained.history[-1].step == 7


def test_a_schedule_over_estimated_stepping_batches_ends_with_max_steps(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = write_lightning(tmp_path / "recipe", EACH_STEP)
    settings = {"global_batch_size": 40, "max_steps": 7}
    job = small_job(home, small_version, recipe, training=settings, tracking={"log_every_steps": 1})
    launch(job)
    points = MetricsFile(job.paths.metrics).read()
    rates = [point.values["train/learning_rate"] for point in points if "train/loss" in point.values]
    assert len(rates) == 7
    assert rates[-1] < 1e-6 < max(rates)  # the schedule's last rate


def test_a_module_that_is_not_lightning_s_is_refused(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = write_lightning(tmp_path / "recipe")
    file = tmp_path / "recipe" / "lit.py"
    text = file.read_text().replace("from lit_module import Digit", "from torch import nn")
    built = "nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], outputs))"
    file.write_text(text.replace("Digit(shape[0] * shape[1] * shape[2], outputs)", built))
    with pytest.raises(
        SettingError, match=r"recipe lit: .* returns a LightningModule of .*, and it returned a Seq"
    ):
        launch(small_job(home, small_version, recipe))


_MANUAL = (
    "        return loss\n",
    "        optimizer = self.optimizers()\n"
    "        optimizer.zero_grad()\n"
    "        self.manual_backward(loss)\n"
    "        {step}\n",
)


def _hook(signature: str, body: str) -> str:
    return f"    def {signature}:\n        {body}\n\n    def configure_opt"


def test_manual_optimization_resumes_to_the_same_bits(
    home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_lightning(tmp_path / "recipe", EACH_STEP)
    own = ("        self.save_hyperparameters()\n", "        self.automatic_optimization = False\n")
    changed(recipe, own, (_MANUAL[0], _MANUAL[1].format(step="optimizer.step()")))
    calm = small_job(Home(tmp_path / "calm"), small_version, recipe)
    trained = launch(calm)
    job = small_job(home, small_version, recipe)
    crash_at(trained.steps / 2, job, monkeypatch)
    assert outcome(job, launch(job)) == outcome(calm, trained)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [
                (
                    "    def configure_opt",
                    _hook("on_save_checkpoint(self, c)", "c['a'] = {'b': object()}"),
                )
            ],
            r"Lightning's checkpoint\['a'\]\['b'\] is of type object",
        ),
        (
            [
                (
                    "    def configure_opt",
                    _hook("on_save_checkpoint(self, c)", "del c['state_dict'][next(iter(c['state_dict']))]"),
                )
            ],
            "on_save_checkpoint removes .* from the state of the module",
        ),
        (
            [
                (
                    "    def configure_opt",
                    _hook(
                        "configure_callbacks(self)", "return [L.pytorch.callbacks.EarlyStopping('val_loss')]"
                    ),
                )
            ],
            "configure_callbacks returns EarlyStopping",
        ),
        (
            [
                (
                    "    def configure_opt",
                    _hook(
                        "configure_callbacks(self)",
                        "return [L.pytorch.callbacks.BackboneFinetuning(unfreeze_backbone_at_epoch=1)]",
                    ),
                )
            ],
            "configure_callbacks returns BackboneFinetuning.*Set requires_grad in __init__",
        ),
        (
            [
                (
                    "    def configure_opt",
                    _hook("configure_callbacks(self)", "return [L.pytorch.callbacks.LearningRateFinder()]"),
                )
            ],
            "configure_callbacks returns LearningRateFinder.*evergreen tune",
        ),
        (
            [
                (
                    "    def configure_opt",
                    _hook("configure_callbacks(self)", "return [L.pytorch.callbacks.BatchSizeFinder()]"),
                )
            ],
            "Batch size finder cannot be used",  # says Lightning itself,
        ),
        (
            [
                (
                    "    def configure_opt",
                    _hook(
                        "on_train_batch_start(self, batch, batch_idx)",
                        "return -1 if batch_idx == 2 else None",
                    ),
                )
            ],
            "left epoch 0 after 2 of",
        ),
        (
            [
                (
                    "        return loss\n",
                    "        self.trainer.should_stop = batch_idx == 3\n        return loss\n",
                )
            ],
            "left epoch 0 after 3 of|left epoch 0 after 4 of",
        ),
        ([('"monitor": "val_loss"', '"monitor": "own_loss"')], "monitors 'own_loss', which validation_step"),
        (
            [
                ("        self.save_hyperparameters()\n", "        self.automatic_optimization = False\n"),
                (_MANUAL[0], _MANUAL[1].format(step="pass")),
            ],
            "made no optimizer step at step 0",
        ),
    ],
    ids=[
        "object",
        "pruned state",
        "early stopping",
        "unfreezing",
        "learning rate finder",
        "batch size finder",
        "skipped batches",
        "should_stop",
        "monitor",
        "no optimizer step",
    ],
)
def test_a_module_that_could_not_resume_is_refused(
    changes: list[tuple[str, str]], message: str, home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = changed(write_lightning(tmp_path / "recipe"), *changes)
    with pytest.raises(TrainingError, match=message):
        launch(small_job(home, small_version, recipe))


def test_a_regression_gets_standardised_targets_of_the_shape_of_its_output(
    home: Home, tmp_path: Path
) -> None:
    recipe = changed(
        write_lightning(tmp_path / "recipe"),
        ("functional.cross_entropy", "functional.mse_loss"),
        ("images + 0.1 * torch.randn_like(images)", "images"),
    )
    file = Path(recipe)
    text = file.read_text().replace("Augmentation, Digits", "BundledTable, Regression")
    text = text.replace("Digits(), trainer", 'BundledTable("diabetes"), Regression(), trainer')
    text = text.replace("shape[0] * shape[1] * shape[2]", "shape[0]")
    file.write_text(text.replace("augmentation=Augmentation(shift=1)", ""))
    job = small_job(
        home, bundled(home, "regression"), recipe, training={"global_batch_size": 40, "epochs": 20}
    )
    trained = launch(job)
    targets = open_columns(job.dataset, "train").targets
    assert trained.history[-1].validation_score < 0.9 * targets.std()


def test_a_share_of_unequal_size_has_its_weight(tmp_path: Path) -> None:
    """Two ranks with 3 and 2 rows: the mean of their weighted gradients is that of the mean loss of all five rows."""
    from training.trainers.lightning.fitting import Fitting

    rows, weights = torch.randn(5, 3), torch.zeros(3, requires_grad=True)
    gradients = []
    for part in (rows[:3], rows[3:]):
        fitting = Fitting.__new__(Fitting)
        fitting.ranks = SimpleNamespace(world_size=2)  # type: ignore[assignment]
        batch = SimpleNamespace(rows=np.arange(len(part)), global_rows=5)
        fitting.batches = SimpleNamespace(fetched=[batch])  # type: ignore[assignment]
        loss = (part @ weights - 1).square().mean()
        fitting.on_before_backward(None, None, loss)
        gradients.append(torch.autograd.grad(loss, weights)[0])
    whole = torch.autograd.grad((rows @ weights - 1).square().mean(), weights)[0]
    assert torch.allclose((gradients[0] + gradients[1]) / 2, whole, atol=1e-6)
