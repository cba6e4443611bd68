"""An interrupted training ends with the same bits as an uninterrupted one."""

import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch._dynamo
from crashes import (
    BATCH,
    SAVE_EACH_STEP,
    SLOW,
    Crash,
    crashed,
    outcome,
    per_epoch,
    points,
    settings,
    started_at,
)
from noisy import noisy_dataset, noisy_recipe
from small_runs import job_for, write_recipe

from training.attempts.history import read_attempts
from training.attempts.metrics import MetricsFile
from training.checkpoints.checkpoint_files import STATE
from training.data.dataset import open_columns
from training.errors import SettingError
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.network import progress
from training.trainers.rows import training_rows

THIRDS = {"checkpoint": {"every_steps": 1}, "tracking": {"log_every_steps": 3}}


@pytest.fixture(scope="module")
def undisturbed(
    small_version: DatasetVersion, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Any, ...]]:
    """Outcomes of uninterrupted trainings, by how often they save."""
    outcomes = {}
    for name, sections in (("each step", SAVE_EACH_STEP), ("slow", SLOW), ("thirds", THIRDS)):
        job = job_for(Home(tmp_path_factory.mktemp(name)), small_version, settings(**sections))
        outcomes[name] = outcome(job, launch(job))
    return outcomes


def test_an_epoch_has_an_uneven_end(small_version: DatasetVersion) -> None:
    """The tests below rely on several steps per epoch, the last of which has another size."""
    learn, _ = training_rows(open_columns(small_version, "train"), settings())
    assert len(learn) % BATCH
    assert per_epoch(small_version) >= 5


@pytest.mark.extended
@pytest.mark.parametrize(
    "moment", ["first step", "second step", "middle", "epoch end", "after epoch end", "last step"]
)
def test_a_crash_at_any_step_changes_no_bit(
    home: Home,
    small_version: DatasetVersion,
    undisturbed: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    moment: str,
) -> None:
    epoch = per_epoch(small_version)
    step = {"first step": 0, "second step": 1, "middle": 3, "epoch end": epoch, "after epoch end": epoch + 1,
            "last step": 2 * epoch - 1}[moment]  # fmt: skip
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


@pytest.mark.extended
@pytest.mark.parametrize("begun", ["one step", "two steps", "a step of the second epoch"])
def test_a_metric_interval_that_had_begun_is_gone_on_with(
    home: Home,
    small_version: DatasetVersion,
    undisturbed: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    begun: str,
) -> None:
    """Points are at every third step and at epoch ends; the crash leaves sums that belong to no point yet."""
    epoch = per_epoch(small_version)
    step = {"one step": 4, "two steps": 5, "a step of the second epoch": epoch + 4}[begun]
    job = job_for(home, small_version, settings(**THIRDS))
    crashed(job, step)
    assert points(job)[-1][0] < step
    with caplog.at_level(logging.INFO, "evergreen.loop"):
        trained = launch(job)
    assert started_at(caplog) == [step]
    assert outcome(job, trained) == undisturbed["thirds"]


def test_how_often_it_saves_changes_no_weight(undisturbed: dict[str, Any]) -> None:
    each_step, slow = undisturbed["each step"], undisturbed["slow"]
    assert each_step[:3] == slow[:3]
    for row, other in zip(each_step[3], slow[3], strict=True):
        assert row == pytest.approx(other)
    assert len(each_step[4]) > len(slow[4])


def test_a_crash_between_the_last_checkpoint_and_the_model(
    home: Home, small_version: DatasetVersion, undisturbed: dict[str, Any]
) -> None:
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP))

    def crash(weights: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "save_weights", crash)
        with pytest.raises(Crash):
            launch(job)
    assert [path.name for path in job.paths.root.iterdir() if "model" in path.name] == []
    assert outcome(job, launch(job)) == undisturbed["each step"]


@pytest.mark.extended
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


def digit_changed(line: str) -> str:
    return line.replace('"total_steps": ', '"total_steps": 1', 1)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("damage", "start"),
    [
        (lambda lines: [*lines[:3], digit_changed(lines[3])], 3),
        (lambda lines: [digit_changed(lines[0]), *lines[1:]], 0),
        (lambda lines: lines[:3], 3),
        (lambda lines: [*lines[:3], lines[3][:40]], 3),
        (lambda lines: lines[:0], 0),
    ],
    ids=["last digit", "early digit", "line lost", "line cut", "all lost"],
)
def test_metric_points_that_were_damaged_are_computed_again(
    home: Home,
    small_version: DatasetVersion,
    undisturbed: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[list[str]], list[str]],
    start: int,
) -> None:
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP))
    crashed(job, 4)
    file = job.paths.metrics
    file.write_text("".join(damage(file.read_text().splitlines(keepends=True))))
    with caplog.at_level(logging.INFO, "evergreen.loop"):
        trained = launch(job)
    assert started_at(caplog) == [start]
    assert f"metric points up to it are missing or damaged in {file}" in caplog.text
    assert outcome(job, trained) == undisturbed["each step"]


def test_damage_to_metric_points_is_noticed_before_the_training_ends(
    home: Home, small_version: DatasetVersion, undisturbed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP))
    check, damaged = MetricsFile.check, [False]

    def damage_once(self: MetricsFile) -> None:
        if not damaged[0]:
            *lines, last = self.path.read_text().splitlines(keepends=True)
            self.path.write_text("".join([*lines, digit_changed(last)]))
            damaged[0] = True
        check(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricsFile, "check", damage_once)
        trained = launch(job)
    assert "the points from there on are computed again. Failure 1 of" in caplog.text
    assert outcome(job, trained) == undisturbed["each step"]


def test_the_seed_decides_the_weights(
    home: Home, small_version: DatasetVersion, undisturbed: dict[str, Any]
) -> None:
    job = job_for(home, small_version, settings(seed=1, **SAVE_EACH_STEP))
    trained = launch(job)
    assert trained.weights_digest != undisturbed["each step"][0]
    assert trained.steps == undisturbed["each step"][2]


def test_a_crash_with_max_steps_changes_no_bit(
    home: Home, small_version: DatasetVersion, tmp_path: Path
) -> None:
    options = settings(training={"max_steps": per_epoch(small_version) + 3}, **SAVE_EACH_STEP)
    clean, job = (job_for(run_home, small_version, options) for run_home in (Home(tmp_path / "clean"), home))
    crashed(job, per_epoch(small_version) + 2)
    assert outcome(job, launch(job)) == outcome(clean, launch(clean))


def test_an_edited_recipe_does_not_change_a_run_that_has_begun(
    home: Home, small_version: DatasetVersion
) -> None:
    recipe = Path(write_recipe(home.root / "own"))
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP), str(recipe))
    crashed(job, 3)
    recipe.write_text("recipe = 'edited'")
    assert launch(job).steps == 2 * per_epoch(small_version)


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["random", "numpy"])
def test_a_model_may_draw_from_the_global_generators(
    home: Home, small_version: DatasetVersion, tmp_path: Path, kind: str
) -> None:
    recipe = noisy_recipe(tmp_path / "own", kind)
    options = settings(**SAVE_EACH_STEP)
    calm, job = (
        job_for(run_home, small_version, options, recipe) for run_home in (Home(tmp_path / "calm"), home)
    )
    undisturbed = outcome(calm, launch(calm))
    crashed(job, 3)
    random.seed(1)
    np.random.seed(1)
    state = random.getstate()
    assert outcome(job, launch(job)) == undisturbed
    assert random.getstate() == state  # the caller's generator is restored


@pytest.mark.extended
@pytest.mark.parametrize("processes", [0, 2])
def test_a_dataset_of_a_recipe_may_draw_from_the_global_generators(
    home: Home, small_version: DatasetVersion, tmp_path: Path, processes: int
) -> None:
    """Each row's draws depend on (seed, epoch, row), so the number of loader processes changes no bit."""
    recipe = noisy_dataset(tmp_path / "own")
    options = settings(data={"feed": "loader", "loader_processes": processes}, **SAVE_EACH_STEP)
    default_options = settings(data={"feed": "loader"}, **SAVE_EACH_STEP)
    calm = job_for(Home(tmp_path / "calm"), small_version, default_options, recipe)
    job = job_for(home, small_version, options, recipe)
    undisturbed = outcome(calm, launch(calm))
    crashed(job, per_epoch(small_version) + 3)
    assert outcome(job, launch(job)) == undisturbed


def test_a_changed_copy_of_the_recipe_is_refused(home: Home, small_version: DatasetVersion) -> None:
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP), write_recipe(home.root / "own"))
    crashed(job, 3)
    with (job.paths.recipe / "plain.py").open("a") as out:
        out.write("changed = True\n")
    with pytest.raises(SettingError, match="the copy kept with the run was changed"):
        launch(job)


@pytest.mark.extended
def test_a_loader_goes_on_at_its_step_and_gives_the_weights_of_the_memory_feed(
    home: Home, small_version: DatasetVersion, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = settings(data={"feed": "loader"}, **SAVE_EACH_STEP)
    clean, job = (job_for(run_home, small_version, options) for run_home in (Home(tmp_path / "clean"), home))
    expected = outcome(clean, launch(clean))
    with caplog.at_level(logging.INFO, "evergreen.loop"):
        crashed(job, per_epoch(small_version) + 3)
        trained = launch(job)
    first, second = started_at(caplog)
    assert (first, second > per_epoch(small_version)) == (0, True)
    assert outcome(job, trained) == expected
    memory = job_for(Home(tmp_path / "memory"), small_version, settings(**SAVE_EACH_STEP))
    assert launch(memory).weights_digest == trained.weights_digest


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler on CPUs")
def test_a_compiled_model_is_resumed_to_the_same_bits_by_a_process_that_compiles_it_again(
    home: Home, small_version: DatasetVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    compiled = settings(training={"compile": True}, **SAVE_EACH_STEP)
    calm, job = (job_for(run_home, small_version, compiled) for run_home in (Home(tmp_path / "calm"), home))
    torch._dynamo.reset()
    undisturbed = outcome(calm, launch(calm))
    crashed(job, per_epoch(small_version) - 1)  # training resumes with an epoch's last, smaller step
    torch._dynamo.reset()
    assert outcome(job, launch(job)) == undisturbed
