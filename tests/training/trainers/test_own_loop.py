"""A recipe's own training loop with Accelerate under Evergreen."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from boosted_tables import outcome
from network_runs import crash_at, rows_of_steps, small_job
from own_loops import write_loop
from small_runs import job_for, tiny_settings
from torch.nn.parallel import DistributedDataParallel
from trainer_contract import TrainerContract

from training.attempts.history import read_attempts
from training.attempts.job import TrainingJob
from training.attempts.metrics import MetricsFile
from training.errors import SettingError, TrainingError
from training.recipe import load
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.network.accelerate_state import new_accelerate
from training.trainers.ranks import Ranks

pytest.importorskip("accelerate", reason="install the extras by: make setup EXTRAS=all")
pytestmark = pytest.mark.frameworks


class TestAccelerate(TrainerContract):
    @pytest.fixture(autouse=True)
    def _recipe(self, small_version: DatasetVersion, tmp_path: Path) -> None:
        self.version, self.recipe = small_version, write_loop(tmp_path / "recipe")

    def job(self, home: Home) -> TrainingJob:
        return small_job(home, self.version, self.recipe)


def test_each_step_has_the_rows_of_the_pytorch_loop(
    home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tiny_settings(training={"epochs": 3, "global_batch_size": 40}, checkpoint={"replay": False})
    expected = rows_of_steps(job_for(home, small_version, own), monkeypatch)
    job = small_job(home, small_version, write_loop(tmp_path / "recipe"), checkpoint={"replay": False})
    assert rows_of_steps(job, monkeypatch) == expected


@pytest.mark.parametrize("part", [0.3, 0.5, 0.67, 0.9])
def test_a_crash_at_any_step_changes_no_bit(
    part: float, home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_loop(tmp_path / "recipe")
    every = {"every_steps": 3}
    calm = small_job(Home(tmp_path / "calm"), small_version, recipe, checkpoint=every)
    trained = launch(calm)
    assert trained.reproducible, trained.reproducible_reason
    job = small_job(home, small_version, recipe, checkpoint=every)
    crash_at(part * trained.steps, job, monkeypatch)
    assert outcome(job, launch(job)) == outcome(calm, trained)
    assert read_attempts(job.paths)[1].first_step > 0


@pytest.mark.parametrize("part", [0.5, 0.9])
def test_weights_that_the_loop_freezes_once_stay_frozen(
    part: float, home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = (
        "    for _ in loop.epochs():\n",
        "    for epoch in loop.epochs():\n        if epoch == 1:\n            model[1].requires_grad_(False)\n",
    )
    recipe = write_loop(tmp_path / "recipe", change)
    calm = small_job(Home(tmp_path / "calm"), small_version, recipe, checkpoint={"every_steps": 2})
    trained = launch(calm)
    job = small_job(home, small_version, recipe, checkpoint={"every_steps": 2})
    crash_at(part * trained.steps, job, monkeypatch)
    assert outcome(job, launch(job)) == outcome(calm, trained)
    plain = small_job(Home(tmp_path / "plain"), small_version, write_loop(tmp_path / "unfrozen"))
    assert launch(plain).weights_digest != trained.weights_digest


def test_state_that_no_checkpoint_holds_is_found_by_the_replay_check(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    changes = (
        "loop.register(model=model, optimizer=optimizer, schedule=schedule)",
        "loop.register(model=model)",
    )
    job = small_job(
        home, small_version, write_loop(tmp_path / "recipe", changes), checkpoint={"every_steps": 3}
    )
    trained = launch(job)
    assert trained.reproducible is False
    assert "differs after step 4 in 1.weight" in trained.reproducible_reason
    assert len(read_attempts(job.paths)) == 1


def test_learning_rates_and_the_loop_s_metrics_are_in_the_points(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    job = small_job(home, small_version, write_loop(tmp_path / "recipe"), tracking={"log_every_steps": 1})
    trained = launch(job)
    points = [point.values for point in MetricsFile(job.paths.metrics).read() if "train/loss" in point.values]
    per_epoch = trained.steps // 3
    rates = [point["train/learning_rate"] for point in points]
    assert rates == [5e-3] * per_epoch + [2.5e-3] * per_epoch + [1.25e-3] * per_epoch
    assert [point["loop/own_loss"] for point in points] == pytest.approx(
        [point["train/loss"] for point in points], rel=1e-5
    )
    assert trained.history[-1].validation_score > 0.3  # 0.1 by chance


def test_max_steps_ends_the_training_inside_an_epoch(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    own = {"global_batch_size": 40, "max_steps": 7}
    trained = launch(small_job(home, small_version, write_loop(tmp_path / "recipe"), training=own))
    assert (trained.steps, trained.history[-1].step) == (7, 7)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "            loop.finish_step(outputs, own_loss=loss)\n",
            "",
            r"did not call finish_step\(outputs\) in step 0",
        ),
        (
            "loop.finish_step(outputs, own_loss=loss)",
            "loop.finish_step(loss)",
            r"outputs of shape \(\) are not of shape",
        ),
        (
            "            loop.finish_step(outputs, own_loss=loss)\n",
            "            loop.finish_step(outputs)\n            loop.finish_step(outputs)\n",
            "whose step is not counted",
        ),
        (
            "            loop.finish_step(outputs, own_loss=loss)\n",
            "            loop.finish_step(outputs)\n            break\n",
            "left epoch 0 after 0 of",
        ),
        ("        schedule.step()\n", "        schedule.step()\n        return\n", "returned after 0 of"),
        (
            "    loop.register(model=model, optimizer=optimizer, schedule=schedule)\n",
            "",
            r"calls epochs\(\) before register",
        ),
        (
            "    loop.register(model=model, optimizer=optimizer, schedule=schedule)\n",
            "    loop.register(model=model)\n    loop.register(model=model)\n",
            r"calls register\(\) twice",
        ),
        ("for _ in loop.epochs():", "for _ in range(1):", "outside of `for epoch in loop.epochs"),
        (
            "accelerator = Accelerator()",
            "from accelerate import FullyShardedDataParallelPlugin\n"
            "    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())",
            r'gives an FSDP plugin to Accelerator.*strategy="fsdp"',
        ),
    ],
)
def test_a_loop_that_breaks_the_rules_is_refused(
    before: str, after: str, message: str, home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = write_loop(tmp_path / "recipe", (before, after))
    with pytest.raises(TrainingError, match=message):
        launch(small_job(home, small_version, recipe))


def test_a_checkpoint_with_other_parts_is_refused(
    home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the recipe that is kept with the run can't change; a loop may keep other parts each time, though."""
    changing = (
        "    loop.register(model=model, optimizer=optimizer, schedule=schedule)\n",
        "    import os\n"
        "    others = {} if os.environ.get('SECOND') else {'schedule': schedule}\n"
        "    loop.register(model=model, optimizer=optimizer, **others)\n",
    )
    job = small_job(home, small_version, write_loop(tmp_path / "recipe", changing))
    crash_at(10, job, monkeypatch)
    monkeypatch.setenv("SECOND", "1")
    with pytest.raises(
        TrainingError, match="got model, optimizer, and the checkpoint has the state of optimizer, schedule"
    ):
        launch(job)


def test_a_recipe_without_a_model_is_refused(tmp_path: Path) -> None:
    recipe = write_loop(tmp_path / "recipe", ("build_model=build_model, ", ""))
    with pytest.raises(SettingError, match="its trainer needs build_model"):
        load(recipe)


def test_the_model_is_found_inside_of_what_accelerate_wraps_around_it(tmp_path: Path) -> None:
    """With several workers, Accelerate compiles the model after it has wrapped the model for them."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.Linear(2, 2)
        wrapped = DistributedDataParallel(model)
        compiled: Any = torch.compile(wrapped)
        from training.trainers.accelerate import training_loop

        modules = training_loop._unwrapped(compiled)
        assert [type(each) for each in modules] == [type(compiled), DistributedDataParallel, torch.nn.Linear]
        inside: Any = DistributedDataParallel(torch.compile(model))  # type: ignore[arg-type]
        assert training_loop._unwrapped(inside)[-1] is model
    finally:
        dist.destroy_process_group()


def test_accelerate_takes_the_gpu_that_ray_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate takes the process's number on the node as the number of its GPU, which Ray chooses otherwise."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    with new_accelerate(Ranks(1, 2, torch.device("cuda", 3), distributed=True)):
        assert (os.environ["LOCAL_RANK"], os.environ["ACCELERATE_USE_CPU"]) == ("3", "false")
    assert os.environ["LOCAL_RANK"] == "1"
    with new_accelerate(Ranks(1, 2, torch.device("cpu"), distributed=True)):
        assert os.environ["LOCAL_RANK"] == "1"


def test_variables_of_accelerate_do_not_reach_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with new_accelerate(Ranks.of_this_process(use_gpu=False)):
        left = {name for name in os.environ if name.startswith("ACCELERATE_")}
        assert left == {"ACCELERATE_USE_CPU"}
        accelerator = pytest.importorskip("accelerate").Accelerator()
        assert (accelerator.mixed_precision, accelerator.gradient_accumulation_steps) == ("no", 1)
    assert (os.environ["ACCELERATE_MIXED_PRECISION"], os.environ["ACCELERATE_USE_FSDP"]) == ("bf16", "true")
