"""A whole training in this process: the same bits whenever it was interrupted, and nothing under a name it does not deserve."""

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import LINEAR, job_for, tiny_settings, write_recipe

from training import loop
from training.checkpoint import STATE, load_weights, weights_digest
from training.dataset import open_columns
from training.errors import SettingError, TrainingError
from training.feeds import Batch, training_rows
from training.job import TrainingJob
from training.launch import finished, launch, read_attempts
from training.learner import Learner
from training.metrics import MetricsFile
from training.paths import Home
from training.ranks import Ranks
from training.recipe import load
from training.records import DatasetVersion, TrainedModel
from training.settings import Settings

BATCH = 40
SAVE_EACH_STEP = {"checkpoint": {"every_steps": 1}, "tracking": {"log_every_steps": 1}}
SLOW = {"checkpoint": {"every_steps": 2}, "tracking": {"log_every_steps": 2}}


class Crash(Exception):
    """Ends a training the hard way; nothing in Evergreen knows it."""


def settings(**sections: Any) -> Settings:
    training = {"global_batch_size": BATCH} | sections.pop("training", {})
    return tiny_settings(training=training, **sections)


def finish_writes() -> None:
    """Wait for checkpoints being written, so that a crash meets the same ones each time."""
    for thread in threading.enumerate():
        if thread.name.endswith("(_write)"):
            thread.join()


def crash_at(monkeypatch: pytest.MonkeyPatch, crash_step: int) -> pytest.MonkeyPatch:
    """Crash before optimizer step `crash_step`."""
    step_of = Learner.step

    def step_or_crash(self: Learner, batch: Batch, epoch: int, step: int) -> Any:
        finish_writes()
        if step == crash_step:
            raise Crash
        return step_of(self, batch, epoch, step)

    monkeypatch.setattr(Learner, "step", step_or_crash)
    return monkeypatch


def crashed(job: TrainingJob, crash_step: int) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, crash_step)
        launch(job)
    assert finished(job.paths, job.run_key) is None
    assert not job.paths.model.exists()


def points(job: TrainingJob) -> list[tuple[int, int, dict[str, float]]]:
    """Metric points without what a clock measures."""
    return [
        (
            point.step,
            point.epoch,
            {name: value for name, value in point.values.items() if not name.startswith("speed/")},
        )
        for point in MetricsFile(job.paths.metrics).read()
    ]


def history(trained: TrainedModel) -> list[dict[str, Any]]:
    return [row.model_dump(exclude={"images_per_s"}) for row in trained.history]


def outcome(job: TrainingJob, trained: TrainedModel) -> tuple[Any, ...]:
    return trained.weights_digest, trained.selected_epoch, trained.steps, history(trained), points(job)


def started_at(caplog: pytest.LogCaptureFixture) -> list[int]:
    found = re.findall(r"training starts at step (\d+) of", caplog.text)
    return [int(step) for step in found]


@pytest.fixture(scope="module")
def undisturbed(
    small_version: DatasetVersion, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Any, ...]]:
    """Outcomes of trainings that nothing interrupted, by how often they save."""
    found = {}
    for name, sections in (("each step", SAVE_EACH_STEP), ("slow", SLOW)):
        job = job_for(Home(tmp_path_factory.mktemp(name)), small_version, settings(**sections))
        found[name] = outcome(job, launch(job))
    return found


def per_epoch(version: DatasetVersion) -> int:
    learn, _ = training_rows(open_columns(version, "train"), settings())
    return len(learn) // BATCH + (len(learn) % BATCH >= BATCH // 8)


def test_an_epoch_has_an_uneven_end(small_version: DatasetVersion) -> None:
    """What the tests below rely on: several steps an epoch, the last of another size."""
    learn, _ = training_rows(open_columns(small_version, "train"), settings())
    assert len(learn) % BATCH
    assert per_epoch(small_version) >= 5


@pytest.mark.parametrize(
    "place", ["first step", "second step", "middle", "epoch end", "after epoch end", "last step"]
)
def test_a_crash_at_any_step_changes_no_bit(
    home: Home,
    small_version: DatasetVersion,
    undisturbed: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    place: str,
) -> None:
    epoch = per_epoch(small_version)
    step = {"first step": 0, "second step": 1, "middle": 3, "epoch end": epoch, "after epoch end": epoch + 1,
            "last step": 2 * epoch - 1}[place]  # fmt: skip
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP))
    crashed(job, step)
    with caplog.at_level(logging.INFO, "evergreen.loop"):
        trained = launch(job)
    assert started_at(caplog) == [step]
    assert outcome(job, trained) == undisturbed["each step"]
    assert (trained.attempts, len(read_attempts(job.paths))) == (2, 2)


def test_steps_after_the_last_checkpoint_are_done_again(
    home: Home, small_version: DatasetVersion, undisturbed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    job = job_for(home, small_version, settings(**SLOW))
    with caplog.at_level(logging.INFO, "evergreen.loop"):
        crashed(job, 3)
        crashed(job, per_epoch(small_version) + 3)
        crashed(job, per_epoch(small_version) + 3)
        trained = launch(job)
    epoch = per_epoch(small_version)
    assert started_at(caplog) == [0, 2, epoch + 2, epoch + 2]
    assert outcome(job, trained) == undisturbed["slow"]


def test_how_often_it_saves_changes_no_weight(undisturbed: dict[str, Any]) -> None:
    each_step, slow = undisturbed["each step"], undisturbed["slow"]
    assert each_step[:3] == slow[:3]
    for one, other in zip(each_step[3], slow[3], strict=True):
        assert one == pytest.approx(other)
    assert len(each_step[4]) > len(slow[4])


def test_a_crash_between_the_last_checkpoint_and_the_model(
    home: Home, small_version: DatasetVersion, undisturbed: dict[str, Any]
) -> None:
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP))

    def crash(weights: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise Crash

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr(loop, "save_weights", crash)
        launch(job)
    assert [path.name for path in job.paths.root.iterdir() if "model" in path.name] == []
    assert outcome(job, launch(job)) == undisturbed["each step"]


@pytest.mark.parametrize("ends_epoch", [False, True])
def test_a_damaged_newest_checkpoint_changes_no_bit(
    home: Home,
    small_version: DatasetVersion,
    undisturbed: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    ends_epoch: bool,
) -> None:
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP))
    step = per_epoch(small_version) if ends_epoch else 4
    crashed(job, step)
    file = job.paths.checkpoints / f"step-{step:09d}" / STATE
    file.write_bytes(file.read_bytes()[:-7])
    with caplog.at_level(logging.INFO, "evergreen.loop"):
        trained = launch(job)
    assert started_at(caplog) == [step - 1]
    assert f"step-{step:09d}" in caplog.text
    assert outcome(job, trained) == undisturbed["each step"]


def test_all_checkpoints_damaged_is_a_fresh_start(
    home: Home, small_version: DatasetVersion, undisturbed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP))
    crashed(job, 4)
    for file in job.paths.checkpoints.glob("step-*/MANIFEST.json"):
        file.write_text("{")
    with caplog.at_level(logging.INFO, "evergreen.loop"):
        trained = launch(job)
    assert started_at(caplog) == [0]
    assert outcome(job, trained) == undisturbed["each step"]


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


def test_the_seed_decides_the_weights(
    home: Home, small_version: DatasetVersion, undisturbed: dict[str, Any]
) -> None:
    job = job_for(home, small_version, settings(seed=1, **SAVE_EACH_STEP))
    trained = launch(job)
    assert trained.weights_digest != undisturbed["each step"][0]
    assert trained.steps == undisturbed["each step"][2]


def test_a_moved_run_is_found(home: Home, small_version: DatasetVersion) -> None:
    job = job_for(home, small_version, settings(training={"epochs": 1}))
    trained = launch(job)
    job.paths.root.rename(job.paths.root.with_name("moved"))
    moved = job.model_copy(update={"root": str(job.paths.root.with_name("moved"))})
    found = finished(moved.paths, job.run_key)
    assert found is not None
    assert weights_digest(load_weights(Path(found.weights))) == trained.weights_digest


def test_the_model_is_the_selected_epochs(home: Home, small_version: DatasetVersion) -> None:
    """The rate rises to an absurd one, so that the first epochs are better than the last."""
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
    """Of the weights that the training left."""
    columns = open_columns(job.dataset, "train")
    learner = Learner(
        load(job.recipe.path)[0], job.dataset, job.settings, Ranks.of_this_process(use_gpu=False), 1
    )
    weights = load_weights(Path(trained.weights))
    assert weights_digest(weights) == trained.weights_digest
    learner.module.load_state_dict(weights)
    return learner.validate(columns, training_rows(columns, job.settings)[1])[0]


def test_every_training_row_once_an_epoch_and_no_other(
    home: Home, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, Counter[int]] = {}
    step_of = Learner.step

    def count(self: Learner, batch: Batch, epoch: int, step: int) -> Any:
        seen.setdefault(epoch, Counter()).update(batch.rows.tolist())
        return step_of(self, batch, epoch, step)

    monkeypatch.setattr(Learner, "step", count)
    job = job_for(home, small_version, settings())
    launch(job)
    columns = open_columns(small_version, "train")
    learn, validate = training_rows(columns, job.settings)
    assert seen == {epoch: Counter(learn.tolist()) for epoch in range(2)}
    assert not set(seen[0]) & set(validate.tolist())


def test_metrics_are_means_over_the_rows_of_their_interval(home: Home, small_version: DatasetVersion) -> None:
    """A frozen model: the loss of an epoch is the loss over all training rows, whatever the steps."""
    frozen = {"optimizer": "sgd", "learning_rate": 1e-30, "weight_decay": 0.0, "augment": False, "epochs": 1}
    recipe = write_recipe(home.root / "own")
    job = job_for(home, small_version, settings(training=frozen, **SLOW), recipe)
    trained = launch(job)
    columns = open_columns(small_version, "train")
    learn, validate = training_rows(columns, job.settings)
    learner = Learner(load(recipe)[0], small_version, job.settings, Ranks.of_this_process(use_gpu=False), 1)
    (row,) = trained.history
    assert (row.train_loss, row.train_accuracy) == pytest.approx(learner.validate(columns, learn), rel=1e-5)
    assert (row.validation_loss, row.validation_accuracy) == pytest.approx(
        learner.validate(columns, validate), rel=1e-5
    )
    per_step = [values for _, _, values in points(job) if "train/loss" in values]
    sizes = [2 * BATCH] * (len(per_step) - 1)
    sizes.append(len(learn) - sum(sizes))
    assert np.average([one["train/loss"] for one in per_step], weights=sizes) == pytest.approx(
        row.train_loss, rel=1e-5
    )


@pytest.mark.parametrize("epochs", [1, 2])
def test_points_stand_at_the_steps_where_they_are_due(
    home: Home, small_version: DatasetVersion, epochs: int
) -> None:
    job = job_for(home, small_version, settings(training={"epochs": epochs}, tracking={"log_every_steps": 3}))
    trained = launch(job)
    one = per_epoch(small_version)
    due = [
        epoch * one + step
        for epoch in range(epochs)
        for step in range(1, one + 1)
        if step % 3 == 0 or step == one
    ]
    found = [(step, sorted(values)) for step, _, values in points(job)]
    assert [step for step, names in found if "train/loss" in names] == due
    assert [step for step, names in found if "validation/loss" in names] == [
        row.step for row in trained.history
    ]
    assert [row.step for row in trained.history] == [one * (epoch + 1) for epoch in range(epochs)]
    assert len({(step, name) for step, names in found for name in names}) == sum(
        len(names) for _, names in found
    )


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


def test_a_crash_with_max_steps_changes_no_bit(
    home: Home, small_version: DatasetVersion, tmp_path: Path
) -> None:
    options = settings(training={"max_steps": per_epoch(small_version) + 3}, **SAVE_EACH_STEP)
    clean, job = (job_for(place, small_version, options) for place in (Home(tmp_path / "clean"), home))
    crashed(job, per_epoch(small_version) + 2)
    assert outcome(job, launch(job)) == outcome(clean, launch(clean))


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


def test_an_edited_recipe_does_not_change_a_run_that_has_begun(
    home: Home, small_version: DatasetVersion
) -> None:
    recipe = Path(write_recipe(home.root / "own"))
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP), str(recipe))
    crashed(job, 3)
    recipe.write_text("recipe = 'edited'")
    assert launch(job).steps == 2 * per_epoch(small_version)


def test_a_changed_copy_of_the_recipe_is_refused(home: Home, small_version: DatasetVersion) -> None:
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP), write_recipe(home.root / "own"))
    crashed(job, 3)
    with (job.paths.recipe / "plain.py").open("a") as out:
        out.write("# changed\n")
    with pytest.raises(SettingError, match="the copy kept with the run was changed"):
        launch(job)


def test_accumulation_trains_the_same_model(home: Home, small_version: DatasetVersion) -> None:
    recipe = write_recipe(home.root / "own")
    found = []
    for passes in (1, 2):
        options = settings(training={"accumulation_steps": passes, "learning_rate": 0.01, "augment": False})
        trained = launch(job_for(home, small_version, options, recipe))
        found.append(load_weights(Path(trained.weights)))
    for name, value in found[0].items():
        assert torch.allclose(value, found[1][name], atol=1e-4)
    fresh = Learner(
        load(recipe)[0], small_version, settings(), Ranks.of_this_process(use_gpu=False), 1
    ).module
    assert not any(
        torch.allclose(value, found[0][name], atol=1e-2) for name, value in fresh.state_dict().items()
    )


def test_a_loader_trains_and_goes_on_at_the_epoch(
    home: Home, small_version: DatasetVersion, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = settings(data={"feed": "loader"}, **SAVE_EACH_STEP)
    clean, job = (job_for(place, small_version, options) for place in (Home(tmp_path / "clean"), home))
    expected = outcome(clean, launch(clean))
    with caplog.at_level(logging.INFO, "evergreen.loop"):
        crashed(job, per_epoch(small_version) + 3)
        trained = launch(job)
    assert started_at(caplog) == [0, expected[3][0]["step"]]
    assert outcome(job, trained) == expected


def test_goodput_adds_up_to_the_wall_time(home: Home, small_version: DatasetVersion) -> None:
    trained = launch(job_for(home, small_version, settings(**SAVE_EACH_STEP)))
    assert trained.goodput.total_s == trained.seconds
    assert sum(trained.goodput.parts.values()) == pytest.approx(trained.seconds, rel=1e-6)
    assert all(seconds >= 0 for seconds in trained.goodput.parts.values())
    assert {"start-up", "compute", "data wait", "validation", "checkpoint"} <= trained.goodput.parts.keys()
    assert (trained.world_size, trained.device) == (1, "cpu")


def test_digits_are_learned(
    home: Home, digits_version: DatasetVersion, tiny_settings: Callable[..., Settings]
) -> None:
    trained = launch(job_for(home, digits_version, tiny_settings(training={"epochs": 3})))
    assert trained.selected().validation_accuracy > 0.9
