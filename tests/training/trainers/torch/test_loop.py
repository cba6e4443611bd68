"""A whole training in this process: the rows that it uses, the metrics it reports, and the model it saves."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crashes import BATCH, SAVE_EACH_STEP, SLOW, crash_at, per_epoch, points, settings
from small_runs import LINEAR, job_for, tiny_settings, write_recipe

from training.attempts.job import TrainingJob
from training.checkpoints.checkpoint_log import CheckpointLog
from training.checkpoints.state_copies import StateCopies
from training.checkpoints.weights import load_weights, weights_digest
from training.data.dataset import open_columns
from training.errors import TrainingError
from training.recipe import load
from training.records import DatasetVersion, TrainedModel
from training.settings.schema import Settings
from training.storage.paths import Home
from training.supervision.launch import finished, launch
from training.trainers.network.feeds import Batch
from training.trainers.ranks import Ranks
from training.trainers.rows import training_rows
from training.trainers.torch.replica import Replica


def test_a_finished_training_is_returned_at_once(home: Home, small_version: DatasetVersion) -> None:
    job = job_for(home, small_version, settings(training={"epochs": 1}))
    first = launch(job)
    written = {file: file.stat().st_mtime_ns for file in home.root.rglob("*") if file.is_file()}
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, 0)
        again = launch(job)
    assert (again.weights_digest, again.run_key, again.history) == (
        first.weights_digest,
        job.run_key,
        first.history,
    )
    assert {file: file.stat().st_mtime_ns for file in home.root.rglob("*") if file.is_file()} == written
    assert finished(job.paths, "0" * 64) is None


def test_a_moved_run_is_found(home: Home, small_version: DatasetVersion) -> None:
    job = job_for(home, small_version, settings(training={"epochs": 1}))
    trained = launch(job)
    there = home.root.rename(home.root.with_name("moved")) / job.paths.root.relative_to(home.root)
    moved = job.model_copy(update={"root": str(there)})
    model = finished(moved.paths, job.run_key)
    assert model is not None
    assert weights_digest(load_weights(Path(model.weights))) == trained.weights_digest


@pytest.mark.extended
def test_the_model_is_the_selected_epochs(home: Home, small_version: DatasetVersion) -> None:
    """The learning rate rises to an absurd value, so that the first epochs are better than the last epoch."""
    wild = {
        "optimizer": "sgd",
        "epochs": 4,
        "learning_rate": 3000.0,
        "schedule": "constant",
        "warmup_share": 0.9,
    }
    recipe = write_recipe(home.root / "own")
    for select in ("best", "last"):
        job = job_for(
            home,
            small_version,
            settings(training={**wild, "select": select}, checkpoint={"keep_best": 1}),
            recipe,
        )
        trained = launch(job)
        losses = [row.validation_loss for row in trained.history]
        assert min(losses) < losses[-1]
        chosen = losses.index(min(losses)) + 1 if select == "best" else 4
        assert trained.selected_epoch == chosen
        assert validation_loss(job, trained) == pytest.approx(losses[chosen - 1], rel=1e-6)


def validation_loss(job: TrainingJob, trained: TrainedModel) -> float:
    """Validation loss of the weights that the training saved."""
    columns = open_columns(job.dataset, "train")
    replica = Replica(
        load(job.recipe.path)[0], job.dataset, job.settings, Ranks.of_this_process(use_gpu=False), 1
    )
    weights = load_weights(Path(trained.weights))
    assert weights_digest(weights) == trained.weights_digest
    replica.module.load_state_dict(weights)
    return replica.validate(columns, training_rows(columns, job.settings)[1])[0]


def test_every_training_row_once_an_epoch_and_no_other(
    home: Home, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, Counter[int]] = {}
    step_of = Replica.step

    def count(self: Replica, batch: Batch, epoch: int, step: int) -> Any:
        seen.setdefault(epoch, Counter()).update(batch.rows.tolist())
        return step_of(self, batch, epoch, step)

    monkeypatch.setattr(Replica, "step", count)
    job = job_for(home, small_version, settings(checkpoint={"replay": False}))
    launch(job)
    columns = open_columns(small_version, "train")
    learn, validate = training_rows(columns, job.settings)
    assert seen == {epoch: Counter(learn.tolist()) for epoch in range(2)}
    assert not set(seen[0]) & set(validate.tolist())


def test_metrics_are_means_over_the_rows_of_their_interval(home: Home, small_version: DatasetVersion) -> None:
    """A frozen model: the loss of an epoch is the loss over all training rows, whatever the steps are."""
    frozen = {"optimizer": "sgd", "learning_rate": 1e-30, "weight_decay": 0.0, "augment": False, "epochs": 1}
    recipe = write_recipe(home.root / "own")
    job = job_for(home, small_version, settings(training=frozen, **SLOW), recipe)
    trained = launch(job)
    columns = open_columns(small_version, "train")
    learn, validate = training_rows(columns, job.settings)
    replica = Replica(load(recipe)[0], small_version, job.settings, Ranks.of_this_process(use_gpu=False), 1)
    (row,) = trained.history
    assert (row.train_loss, row.train_score) == pytest.approx(replica.validate(columns, learn), rel=1e-5)
    assert (row.validation_loss, row.validation_score) == pytest.approx(
        replica.validate(columns, validate), rel=1e-5
    )
    per_step = [values for _, _, values in points(job) if "train/loss" in values]
    sizes = [2 * BATCH] * (len(per_step) - 1)
    sizes.append(len(learn) - sum(sizes))
    assert np.average([values["train/loss"] for values in per_step], weights=sizes) == pytest.approx(
        row.train_loss, rel=1e-5
    )


@pytest.mark.extended
@pytest.mark.parametrize("epochs", [1, 2])
def test_points_stand_at_the_steps_where_they_are_due(
    home: Home, small_version: DatasetVersion, epochs: int
) -> None:
    job = job_for(home, small_version, settings(training={"epochs": epochs}, tracking={"log_every_steps": 3}))
    trained = launch(job)
    epoch_steps = per_epoch(small_version)
    due = [
        epoch * epoch_steps + step
        for epoch in range(epochs)
        for step in range(1, epoch_steps + 1)
        if step % 3 == 0 or step == epoch_steps
    ]
    stored = [(step, sorted(values)) for step, _, values in points(job)]
    assert [step for step, names in stored if "train/loss" in names] == due
    assert [step for step, names in stored if "validation/loss" in names] == [
        row.step for row in trained.history
    ]
    assert [row.step for row in trained.history] == [epoch_steps * (epoch + 1) for epoch in range(epochs)]
    assert len({(step, name) for step, names in stored for name in names}) == sum(
        len(names) for _, names in stored
    )


@pytest.mark.extended
@pytest.mark.parametrize("steps", [1, 4, "epoch", "epoch and two"])
def test_max_steps_ends_the_training_there(
    home: Home, small_version: DatasetVersion, steps: int | str
) -> None:
    epoch = per_epoch(small_version)
    most = {"epoch": epoch, "epoch and two": epoch + 2}.get(str(steps), steps)
    job = job_for(home, small_version, settings(training={"max_steps": most}))
    trained = launch(job)
    assert trained.steps == most == trained.history[-1].step
    assert len(trained.history) == (2 if most > epoch else 1)


def test_a_loss_that_is_no_number_stops_without_a_model(home: Home, small_version: DatasetVersion) -> None:
    wild = {"optimizer": "sgd", "learning_rate": 1e38, "warmup_share": 0.0}
    job = job_for(home, small_version, settings(training=wild), write_recipe(home.root / "own"))
    for _ in range(2):
        with pytest.raises(TrainingError, match=r"became .* at step \d+ .* diverged"):
            launch(job)
        assert not job.paths.model.exists()
        assert finished(job.paths, job.run_key) is None
        assert all(np.isfinite(value) for _, _, values in points(job) for value in values.values())


def test_a_model_of_another_output_stops_without_a_model(home: Home, small_version: DatasetVersion) -> None:
    recipe = write_recipe(home.root / "own", LINEAR.replace("classes)", "7)"))
    job = job_for(home, small_version, settings(), recipe)
    with pytest.raises(TrainingError, match=r"\(2, 7\); 10 classes need \(2, 10\)"):
        launch(job)
    assert not job.paths.model.exists()


def test_accumulation_trains_the_same_model(home: Home, small_version: DatasetVersion) -> None:
    recipe = write_recipe(home.root / "own")
    weights = []
    for passes in (1, 2):
        options = settings(training={"accumulation_steps": passes, "learning_rate": 0.01, "augment": False})
        trained = launch(job_for(home, small_version, options, recipe))
        weights.append(load_weights(Path(trained.weights)))
    for name, value in weights[0].items():
        assert torch.allclose(value, weights[1][name], atol=1e-4)
    fresh = Replica(
        load(recipe)[0], small_version, settings(), Ranks.of_this_process(use_gpu=False), 1
    ).module
    assert not any(
        torch.allclose(value, weights[0][name], atol=1e-2) for name, value in fresh.state_dict().items()
    )


def test_goodput_adds_up_to_the_wall_time(home: Home, small_version: DatasetVersion) -> None:
    trained = launch(job_for(home, small_version, settings(**SAVE_EACH_STEP)))
    assert trained.goodput.total_s == trained.seconds
    assert sum(trained.goodput.parts.values()) == pytest.approx(trained.seconds, rel=1e-6)
    assert all(seconds >= 0 for seconds in trained.goodput.parts.values())
    assert {"start-up", "compute", "data wait", "validation", "checkpoint"} <= trained.goodput.parts.keys()
    assert (trained.world_size, trained.device) == (1, "cpu")


@pytest.mark.extended
def test_digits_are_learned(
    home: Home, digits_version: DatasetVersion, tiny_settings: Callable[..., Settings]
) -> None:
    trained = launch(job_for(home, digits_version, tiny_settings(training={"epochs": 3})))
    assert trained.selected().validation_score > 0.9


def test_a_training_in_this_process_leaves_torch_as_it_was(home: Home, small_version: DatasetVersion) -> None:
    before = (torch.get_num_threads(), torch.get_deterministic_debug_mode())
    launch(job_for(home, small_version, tiny_settings(training={"deterministic": "refuse"})))
    assert (torch.get_num_threads(), torch.get_deterministic_debug_mode()) == before


def test_a_checkpoint_that_is_copied_late_is_of_its_own_step(
    home: Home, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer waits for a copy that takes longer than the next passes."""
    before_update: list[str] = []
    names: set[str] = set()  # names of weights, which passes do not change, unlike running statistics
    update, fill = Replica.update, StateCopies.fill

    def noting(replica: Replica) -> None:
        before_update.append(weights_digest(dict(replica.module.named_parameters())))
        names.update(name for name, _ in replica.module.named_parameters())
        update(replica)

    late_ones: list[int] = []

    def late(copies: StateCopies) -> None:
        late_ones.append(len(copies._outstanding))
        time.sleep(0.3)  # longer than the passes of a step, also on a busy machine
        fill(copies)

    monkeypatch.setattr(Replica, "update", noting)
    monkeypatch.setattr(StateCopies, "fill", late)
    keep_all = {"checkpoint": {"every_steps": 1, "keep_newest": 100, "replay": False}}
    job = job_for(home, small_version, settings(training={"epochs": 1}, **keep_all))
    trained = launch(job)
    log = CheckpointLog(job.paths.checkpoints, job.settings.checkpoint, job.run_key)
    steps = range(1, trained.steps)
    assert len(steps) >= 3
    for step in steps:
        state = log.load_step(step)["learner"]["model"]
        assert weights_digest({name: state[name] for name in names}) == before_update[step]
    assert trained.goodput.parts["checkpoint"] > 0.04 * len(steps)  # includes the wait for the copy
    # The checkpoint at the end of an epoch may become the model, so it is copied at once.
    assert [bool(count) for count in late_ones] == [*(True for _ in steps), False]
