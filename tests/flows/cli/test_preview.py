"""A plan shows the number of steps that a run will make, and an estimate of its time from earlier runs."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from noisy import noisy_dataset
from small_runs import prepared, tiny_settings

from flows.cli.summary import print_preview
from flows.estimate import estimate, saved_step, steps_per_epoch, total_steps
from flows.preview import Preview, preview
from tasks.train import keep_plan
from training.attempts.fence import Fence
from training.checkpoints.opening import stored_run_of
from training.checkpoints.stored_run import StoredCheckpoint
from training.data.dataset import open_columns
from training.data.sample_order import SampleOrder
from training.data.sources.digits import Digits
from training.plan import RunPlan, identify
from training.recipe import load
from training.records import EpochMetrics, Goodput, Release, TrainedModel, Verdict
from training.settings.schema import Settings
from training.storage.files import write_text
from training.storage.paths import Home
from training.trainers.network.feeds import StreamFeed
from training.trainers.ranks import Ranks
from training.trainers.rows import training_rows

PARTS = {
    "start-up": 20.0,
    "preparation": 7.0,
    "data wait": 1.0,
    "compute": 8.0,
    "communication": 1.0,
    "checkpoint": 2.0,
    "validation": 4.0,
    "lost to failures": 50.0,
    "evaluation": 3.0,
}


@given(rows=st.integers(1, 500), workers=st.integers(1, 4), each=st.integers(1, 40))
def test_the_number_of_steps_is_that_of_the_feed(rows: int, workers: int, each: int) -> None:
    def settings(feed: str) -> Settings:
        return Settings.model_validate(
            {
                "data": {"feed": feed},
                "training": {"global_batch_size": workers * each},
                "scaling": {"num_workers": workers},
            }
        )

    ranks = Ranks(0, workers, torch.device("cpu"), distributed=False)
    order = SampleOrder(rows, workers * each, 0, workers)
    assert steps_per_epoch(rows, settings("loader")) == order.steps_per_epoch
    stream = StreamFeed(None, rows, settings("stream"), ranks)  # counts steps without reading rows
    assert steps_per_epoch(rows, settings("stream")) == stream.steps_per_epoch


def test_the_longest_training_can_be_limited() -> None:
    settings = tiny_settings(training={"epochs": 3, "max_steps": 4, "global_batch_size": 10})
    assert total_steps(100, settings) == 4
    assert total_steps(10, settings) == 3


def planned(home: Home, **sections: Any) -> RunPlan:
    _, ref = load("digits")
    return identify(home, ref, tiny_settings(**sections), Digits().fetch(home.sources / "digits"))


def finish(plan: RunPlan, parts: dict[str, float] = PARTS, world_size: int = 1, rows: int = 1000) -> None:
    """Create the files of a finished run of two epochs: 900 training rows at 200 images/s."""
    history = tuple(
        EpochMetrics(
            epoch=epoch,
            step=epoch * 10,
            train_loss=1.0,
            train_score=0.5,
            validation_loss=1.0,
            validation_score=0.5,
            learning_rate=0.1,
            images_per_s=200.0,
            rows=900,
            checksum=0,
        )
        for epoch in (1, 2)
    )
    trained = TrainedModel(
        run_key=plan.run_key,
        weights="",
        weights_digest="0",
        selected_epoch=2,
        steps=20,
        world_size=world_size,
        device="cpu",
        history=history,
        seconds=10.0,
        goodput=Goodput(total_s=10.0, parts={}),
    )
    release = Release(
        recipe="digits",
        run_key=plan.run_key,
        dataset_fingerprint=plan.fingerprint,
        weights_digest="0",
        model="digits",
        version="1",
        alias="champion",
        train_rows=rows,
        test_rows=100,
        epochs=2,
        selected_epoch=2,
        verdict=Verdict(promote=True, summary="", rules=(), champion_version=None),
        evaluation="",
        metrics={},
        mlflow_run_id="0",
        report="",
        seconds=sum(parts.values()),
        goodput=Goodput(total_s=sum(parts.values()), parts=parts),
    )
    keep_plan(plan)
    write_text(plan.paths.model / "trained.json", trained.model_dump_json())
    write_text(plan.paths.release, release.model_dump_json())


def test_time_comes_from_the_newest_run_on_as_many_workers(home: Home) -> None:
    version = prepared(home)
    plan = planned(home, training={"global_batch_size": 90})
    assert estimate(plan, version, 10) == (None, "no run of digits has finished here yet")
    fitting = planned(home, seed=1)
    finish(fitting)
    finish(planned(home, seed=2), world_size=8)
    # This run reused its training, so its time is no basis for an estimate.
    finish(planned(home, seed=3), parts={"orchestration": 1.0})
    # 40 steps of 90 rows at 200 images/s; validation and checkpoints scaled to twice the rows; the rest is unchanged.
    seconds, why = estimate(plan, version, 40)
    assert seconds == pytest.approx(3600 / 200 + 2 * 6.0 + 20.0 + 3.0)
    assert why == f"from run {fitting.run_key[:16]}"


def test_time_is_scaled_by_the_pixels_of_an_image(home: Home) -> None:
    version = prepared(home)
    earlier = planned(home, data={"image_size": 16})
    finish(earlier)
    plan = planned(home, data={"image_size": 8}, training={"global_batch_size": 90})
    seconds, why = estimate(plan, version, 40)
    assert seconds == pytest.approx(3600 / 200 / 4 + 2 * 6.0 + 20.0 + 3.0)
    assert why == f"from run {earlier.run_key[:16]} with images of 4 times as many pixels"
    alike = planned(home, data={"image_size": 8}, seed=5)
    finish(alike)
    finish(planned(home, data={"image_size": 32}))
    assert estimate(plan, version, 40).why == f"from run {alike.run_key[:16]}"


def test_time_of_data_that_are_not_prepared(home: Home) -> None:
    plan = planned(home, training={"global_batch_size": 90, "epochs": 4})
    finish(planned(home, seed=1))
    seconds, why = estimate(plan, None, None)
    assert seconds == pytest.approx(3600 / 200 + 2 * 6.0 + 20.0 + 3.0 + 7.0)
    assert why.endswith("if there are as many rows")


def test_time_of_the_remaining_steps(home: Home) -> None:
    version = prepared(home)
    finish(planned(home, seed=1))
    plan = planned(home, training={"global_batch_size": 90})
    (plan.paths.checkpoints / "step-000000030").mkdir(parents=True)
    seconds, _ = estimate(plan, version, 40)
    assert seconds == pytest.approx(900 / 200 + 0.5 * 6.0 + 20.0 + 3.0)
    finish(plan)
    assert estimate(plan, version, 40).seconds == pytest.approx(20.0 + 3.0)


def test_a_release_of_another_version_is_skipped(home: Home) -> None:
    plan = planned(home)
    finish(plan)
    write_text(plan.paths.release, '{"format": "of the future"}')
    assert estimate(plan, None, None).seconds is None


def shown(made: Preview, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Print the plan; returns its rows as a dictionary."""
    print_preview(made)
    lines = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines()]
    return {line[0].strip(): line[1].strip() for line in lines if len(line) == 2}


def overrides(feed: str = "memory", **training: Any) -> dict[str, Any]:
    return {"scaling": {"num_workers": 1}, "data": {"feed": feed}, "training": training}


def test_the_plan_of_a_first_run(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    rows = shown(preview("digits", overrides(), home), capsys)
    assert rows["changed since the last run"] == "this is the first run of this recipe here"
    assert rows["time"] == "not known: no run of digits has finished here yet"
    assert rows["steps"] == "known after the data are prepared"
    assert rows["prepare"] == "runs: first run"
    assert rows["reproducible"] == "known after the first run"


def test_the_plan_of_a_later_run_shows_changes_and_time(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(planned(home))
    made = preview("digits", overrides(epochs=7), home)
    rows = shown(made, capsys)
    assert "settings.training.epochs: 2 -> 7" in made.changes
    assert rows["changed since the last run"] == made.changes[0]
    assert rows["time"].startswith("about ")
    assert rows["steps"] == "known after the data are prepared"
    assert "not prepared yet" in rows["prepare"]


def test_steps_of_each_feed_are_shown(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    version = prepared(home)
    learn = len(training_rows(open_columns(version, "train"), tiny_settings())[0])
    made = {
        feed: preview("digits", overrides(feed, epochs=2), home) for feed in ("memory", "stream", "loader")
    }
    whole, rest = divmod(learn, 64)
    assert rest >= 16  # enough rows for a separate last step with feed memory
    assert [feed_preview.steps_per_epoch for feed_preview in made.values()] == [whole + 1, whole, whole + 1]
    assert shown(made["stream"], capsys)["steps"] == f"{2 * whole}, {whole} an epoch (feed stream)"
    huge = preview("digits", overrides("stream", global_batch_size=10**6), home)
    assert "none, so training is refused" in shown(huge, capsys)["steps"]


def test_a_plan_warns_of_a_dataset_without_effect(
    home: Home, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe, local = noisy_dataset(tmp_path / "own"), {"num_workers": 0}
    for feed, warns in (("memory", True), ("loader", False)):
        caplog.clear()
        with caplog.at_level("WARNING", "evergreen.checks"):
            preview(recipe, {"scaling": local, "data": {"feed": feed}}, home)
        assert ("its dataset has no effect with data.feed=memory" in caplog.text) == warns


def test_an_interrupted_run_in_an_object_store_is_known_as_such(home: Home, tmp_path: Path) -> None:
    plan = planned(home, storage={"url": f"file://{tmp_path}/store"})
    assert saved_step(plan) == 0
    stored = stored_run_of(f"file://{tmp_path}/store", "digits", plan.paths.root.name)
    stored.begin("driver", 1)
    stored.fence = Fence(plan.paths.fence, 1, 1, "driver")
    stored.enter()
    made = (StoredCheckpoint(step=12, score=None, files=()), StoredCheckpoint(step=8, score=None, files=()))
    stored.commit(lambda state: state.model_copy(update={"checkpoints": made}))
    assert saved_step(plan) == 12
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").touch()  # the store does not answer
    assert saved_step(plan) == 0
