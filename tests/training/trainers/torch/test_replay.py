"""The replay from the first checkpoint finds, names and records what an interruption would change."""

import random
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crashes import SAVE_EACH_STEP, Crash, crashed, outcome, per_epoch, settings
from noisy import noisy_dataset, noisy_recipe
from small_runs import job_for
from torch import nn

from training.attempts.job import TrainingJob
from training.checkpoints.checkpoint_files import read_manifest
from training.records import DatasetVersion, ReplayOutcome
from training.storage.paths import Home
from training.storage.record_files import write_record
from training.supervision.launch import launch
from training.trainers.own_loop import replay
from training.trainers.own_loop.unsaved_state import unsaved_differences
from training.trainers.replay_outcome import read_outcome
from training.trainers.torch.replica import Replica

UNCHECKED = {"checkpoint": {"every_steps": 1, "replay": False}, "tracking": {"log_every_steps": 1}}
# What the model keeps or draws from, and the name under which the replay reports it.
BREAKS = {
    "counter": "calls (attribute)",
    "buffer": "drift (buffer with persistent=False)",
    "own generator": "dice (attribute)",
    "global": "noisy.py: CALLS (global variable)",
}


def found(job: TrainingJob) -> ReplayOutcome:
    outcome = read_outcome(job.paths)
    assert outcome is not None
    return outcome


@pytest.mark.extended
@pytest.mark.parametrize("kind", BREAKS)
def test_what_breaks_a_resumed_run_is_found_and_named(
    home: Home, small_version: DatasetVersion, tmp_path: Path, kind: str
) -> None:
    recipe = noisy_recipe(tmp_path / "own", kind)
    calm = job_for(Home(tmp_path / "calm"), small_version, settings(**SAVE_EACH_STEP), recipe)
    undisturbed = launch(calm)
    job = job_for(home, small_version, settings(**UNCHECKED), recipe)
    crashed(job, 4)
    assert outcome(job, launch(job)) != outcome(calm, undisturbed)  # the interruption did change the weights

    told = found(calm)
    assert told.unsaved == (BREAKS[kind],)
    assert (told.reproducible, told.from_step, told.first_difference) == (False, 1, 2)
    assert "layer.weight" in told.differing
    assert (undisturbed.reproducible, undisturbed.reproducible_reason) == (False, told.reason)
    assert BREAKS[kind] in told.reason
    assert "register_buffer" in told.reason


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_workers_that_compute_together_replay_together(
    home: Home, small_version: DatasetVersion, tmp_path: Path
) -> None:
    recipe = noisy_recipe(tmp_path / "own", "counter")
    two = {"num_workers": 2, "cpus_per_worker": 0.5}
    options = settings(scaling=two, ray={"num_cpus": 2}, **SAVE_EACH_STEP)
    job = job_for(home, small_version, options, recipe)
    trained = launch(job)
    assert (trained.world_size, trained.reproducible, trained.attempts) == (2, False, 1)
    assert (found(job).from_step, found(job).first_difference) == (1, 2)
    assert found(job).unsaved == (BREAKS["counter"],)
    contracts = [read_manifest(checkpoint).contract for checkpoint in job.paths.checkpoints.glob("step-*")]
    assert {(contract["workers"], contract["backend"]) for contract in contracts} == {("2", "gloo")}


def test_unsaved_state_that_has_not_changed_a_weight_yet_is_found(
    home: Home, small_version: DatasetVersion, tmp_path: Path
) -> None:
    recipe = noisy_recipe(tmp_path / "own", "unused counter")
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP), recipe)
    assert launch(job).reproducible is False
    assert (found(job).unsaved, found(job).differing) == (("calls (attribute)",), ())


def test_numbers_that_nobody_can_seed_are_found(
    home: Home, small_version: DatasetVersion, tmp_path: Path
) -> None:
    recipe = noisy_recipe(tmp_path / "own", "operating system")
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP), recipe)
    assert launch(job).reproducible is False
    assert found(job).unsaved == ()
    assert "does not seed" in found(job).reason


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["nothing", "random", "numpy", "saved counter"])
def test_a_reproducible_run_is_said_to_be_one(
    home: Home, small_version: DatasetVersion, tmp_path: Path, kind: str
) -> None:
    recipe = noisy_recipe(tmp_path / "own", kind)
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP), recipe)
    trained = launch(job)
    assert trained.reproducible is True
    assert (found(job).from_step, found(job).differing, found(job).unsaved) == (1, (), ())
    assert found(job).steps > 0


@pytest.mark.extended
@pytest.mark.parametrize(
    "training",
    [
        {"accumulation_steps": 2},
        {"precision": "bfloat16"},
        {"virtual_shards": 2},
        {"optimizer": "sgd", "channels_last": True},
        {"epochs": 1},
    ],
    ids=lambda training: next(iter(training)),
)
def test_every_way_to_train_is_replayed_and_stays_as_it_is(
    home: Home, small_version: DatasetVersion, tmp_path: Path, training: dict[str, Any]
) -> None:
    sections = {"training": training, "checkpoint": {"every_s": 1000.0}}
    job = job_for(home, small_version, settings(**sections))
    sections["checkpoint"] = {"every_s": 1000.0, "replay": False}
    without = job_for(Home(tmp_path / "without"), small_version, settings(**sections))
    assert job.run_key == without.run_key
    trained, plain = launch(job), launch(without)
    assert trained.reproducible is True, trained.reproducible_reason
    assert trained.weights_digest == plain.weights_digest
    assert (plain.reproducible, plain.reproducible_reason) == (None, "not checked: checkpoint.replay is off")
    epoch = per_epoch(small_version)
    assert found(job).from_step == ((epoch + 1) // 2 if training == {"epochs": 1} else epoch)


def test_a_dataset_of_a_recipe_is_replayed_too(
    home: Home, small_version: DatasetVersion, tmp_path: Path
) -> None:
    options = settings(data={"feed": "loader"})
    job = job_for(home, small_version, options, noisy_dataset(tmp_path / "own"))
    assert launch(job).reproducible is True
    broken = Path(noisy_dataset(tmp_path / "broken"))
    broken.write_text(
        broken.read_text().replace(
            "import random\n", "from random import SystemRandom\n    random = SystemRandom()\n"
        )
    )
    job = job_for(Home(tmp_path / "home-2"), small_version, options, str(broken))
    assert launch(job).reproducible is False
    assert "the images that the feed gave" in found(job).differing


@pytest.mark.extended
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_run_that_dies_in_the_replay_goes_on(
    home: Home, small_version: DatasetVersion, tmp_path: Path, deaths: int
) -> None:
    calm = job_for(Home(tmp_path / "calm"), small_version, settings(**SAVE_EACH_STEP))
    undisturbed = outcome(calm, launch(calm))
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP))

    def die(*_: object) -> None:
        raise Crash

    for _ in range(deaths):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replay, "unsaved_differences", die)
            with pytest.raises(Crash):
                launch(job)
    trained = launch(job)
    assert outcome(job, trained) == undisturbed
    if deaths == 1:
        assert trained.reproducible is True
    else:
        reason = "not checked: the worker died 2 times during the replay"
        assert (trained.reproducible, trained.reproducible_reason) == (None, reason)


@pytest.mark.extended
def test_a_replay_that_fails_does_not_end_the_training(
    home: Home, small_version: DatasetVersion, tmp_path: Path
) -> None:
    calm = job_for(Home(tmp_path / "calm"), small_version, settings(**SAVE_EACH_STEP))
    undisturbed = outcome(calm, launch(calm))
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP))

    def fail(*_: object) -> None:
        raise RuntimeError("no second model")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replica, "load", fail)
        trained = launch(job)
    assert outcome(job, trained) == undisturbed
    assert trained.reproducible_reason == "not checked: the replay failed (RuntimeError: no second model)"


def test_the_check_is_made_once(home: Home, small_version: DatasetVersion, tmp_path: Path) -> None:
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP))
    crashed(job, per_epoch(small_version) + 3)
    before = found(job)
    assert before.reproducible is True
    noted = before.model_copy(update={"reason": "noted once"})
    write_record(job.paths.replay, noted, job.paths.root.name)
    assert launch(job).reproducible_reason == "noted once"


@pytest.mark.extended
def test_a_damaged_outcome_is_found_again(home: Home, small_version: DatasetVersion) -> None:
    job = job_for(home, small_version, settings(**SAVE_EACH_STEP))
    crashed(job, per_epoch(small_version) + 3)
    job.paths.replay.write_bytes(job.paths.replay.read_bytes()[:-9])
    assert launch(job).reproducible is True


class Kept(nn.Module):
    """Has all kinds of state outside its state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.number, self.text, self.array = 1.5, "a", np.zeros(3)
        self.tensor, self.queue = torch.zeros(2), deque([1, 2], maxlen=2)
        self.table, self.cache = {"a": [1, {2}]}, {8: torch.ones(8)}
        self.numpys, self.pythons = np.random.default_rng(1), random.Random(1)
        self.torchs = torch.Generator().manual_seed(1)
        self.own = Holder()
        self.function, self.kind = len, Holder
        self.register_buffer("constant", torch.ones(2), persistent=False)


class Holder:
    """Some object of a recipe."""

    def __init__(self) -> None:
        self.count = 0
        self.me = self


CHANGES = {
    "number": lambda module: setattr(module, "number", float("nan")),
    "text": lambda module: setattr(module, "text", "b"),
    "array": lambda module: module.array.__setitem__(0, -0.0),
    "tensor": lambda module: module.tensor.add_(1),
    "queue": lambda module: module.queue.append(3),
    "table": lambda module: module.table["a"][1].add(4),
    "numpys": lambda module: module.numpys.random(),
    "pythons": lambda module: module.pythons.random(),
    "torchs": lambda module: torch.rand(1, generator=module.torchs),
    "own": lambda module: setattr(module.own, "count", 1),
    "new": lambda module: setattr(module, "new", 1),
}


def test_equal_models_have_no_unsaved_difference() -> None:
    assert unsaved_differences(nn.Sequential(Kept()), nn.Sequential(Kept())) == []
    other = nn.Sequential(Kept())
    other[0].cache[16] = torch.ones(16)  # filled by a batch of another size
    with torch.no_grad():
        other[0].inner.weight.zero_()  # part of state_dict
    assert unsaved_differences(nn.Sequential(Kept()), other) == []


@pytest.mark.parametrize("name", CHANGES)
def test_every_kind_of_state_is_found_where_it_is(name: str) -> None:
    changed, other = nn.Sequential(Kept()), nn.Sequential(Kept())
    CHANGES[name](changed[0])
    assert unsaved_differences(changed, other) == [f"0.{name} (attribute)"]
