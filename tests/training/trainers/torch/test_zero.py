"""`training.strategy=deepspeed` on two workers: each has a part of the state, and a kill changes no bit."""

import shutil
import signal
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from crashes import outcome
from divided_runs import STEPS, attempt, checkpoints, job, settings
from slow_runs import send, when_at_step

from training.attempts.history import read_attempts
from training.checkpoints.checkpoint_files import read_manifest, read_state
from training.checkpoints.parts import whole
from training.checkpoints.weights import load_weights, weights_digest
from training.errors import SettingError
from training.identity import ingredients
from training.recipe import load
from training.records import DatasetVersion
from training.settings.overrides import parse_assignments, resolve
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.torch import trainer

# Not imported here: the processes of the tests must import the library as a worker does.
needs_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="install the extras by: make setup EXTRAS=all"
)


# No bias before the batch normalisation: its gradient is rounding alone, which Adam scales up.
MODEL = """nn.Sequential(
        nn.Conv2d(shape[0], 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
        nn.Linear(3 * (shape[1] - 2) * (shape[2] - 2), 50), nn.ReLU(), nn.Dropout(0.1), nn.Linear(50, classes))"""


def zero(stage: int, **training: Any) -> dict[str, Any]:
    return {"training": {"strategy": "deepspeed", "zero_stage": stage} | training}


@pytest.fixture(scope="module")
def of_ddp(
    ray_session: None, small_version: DatasetVersion, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    """The weights that a training with DDP ends with."""
    run = job(Home(tmp_path_factory.mktemp("ddp")), small_version, model=MODEL, training={"strategy": "ddp"})
    return load_weights(Path(launch(run).weights))


@needs_deepspeed
@pytest.mark.frameworks
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("stage", [2, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (3, 1, 0))])
def test_a_killed_ray_worker_changes_no_bit_and_the_weights_are_those_of_ddp(
    small_version: DatasetVersion, home: Home, tmp_path: Path, of_ddp: dict[str, torch.Tensor], stage: int
) -> None:
    hit = job(home, small_version, model=MODEL, **zero(stage))
    calm = job(Home(tmp_path / "calm"), small_version, model=MODEL, **zero(stage))
    killing = when_at_step(hit.paths, 7, send(1, signal.SIGKILL), past_first_step=False)
    trained, undisturbed = launch(hit), attempt(calm)
    killing.join()
    assert undisturbed is not None
    first, second = read_attempts(hit.paths)
    assert (first.world_size, second.world_size, second.first_step >= 3) == (2, 2, True)
    assert undisturbed.reproducible, undisturbed.reproducible_reason
    assert outcome(hit, trained) == outcome(calm, undisturbed)
    loaded = load_weights(Path(trained.weights))
    assert loaded.keys() == of_ddp.keys()
    for name, tensor in loaded.items():
        torch.testing.assert_close(tensor, of_ddp[name], rtol=1e-4, atol=1e-6, msg=name)
    newest = checkpoints(calm)[-1]
    assert len([*newest.glob("part-*.safetensors")]) == (2 if stage else 0)
    weights = whole(read_state(newest, read_manifest(newest))["learner"]["model"])
    assert weights_digest(weights) == trained.weights_digest


@needs_deepspeed
@pytest.mark.frameworks
def test_another_number_of_workers_reads_the_checkpoint(small_version: DatasetVersion, home: Home) -> None:
    run = job(home, small_version, model=MODEL, **zero(3))
    assert attempt(run) is not None
    shutil.rmtree(run.paths.model)
    shutil.rmtree(checkpoints(run)[-1])
    alone = settings(workers=0, **zero(3))
    assert launch(run.model_copy(update={"settings": alone})).steps == STEPS
    newest = read_attempts(run.paths)[-1]
    assert (newest.world_size, newest.first_step) == (1, 9)
    shutil.rmtree(run.paths.model)
    shutil.rmtree(checkpoints(run)[-1])
    assert attempt(run) is not None  # two workers read what one has written, too
    newest = read_attempts(run.paths)[-1]
    assert (newest.world_size, newest.first_step) == (2, 9)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "training.virtual_shards=2",
            "training.virtual_shards: not supported with training.strategy=deepspeed",
        ),
        (
            "training.compile=true",
            "training.compile: .* set training.compile=false, or training.strategy=ddp",
        ),
        (
            "training.channels_last=true",
            "training.channels_last: not supported with training.strategy=deepspeed",
        ),
        ("training.precision=float16", "training.precision: .* set training.precision=bfloat16"),
        ("training.zero_stage=4", "training.zero_stage: Input should be less than or equal to 3"),
    ],
)
def test_what_can_not_work_is_refused(assignment: str, message: str) -> None:
    given = resolve(settings(1, **zero(2)), {"scaling": {"use_gpu": "auto"}})
    with pytest.raises(SettingError, match=message):
        resolve(given, parse_assignments([assignment]))


@needs_deepspeed
@pytest.mark.frameworks
def test_stage_and_version_of_the_library_are_part_of_the_run_key() -> None:
    def parts(**sections: Any) -> dict[str, Any]:
        return ingredients(load("digits")[1], settings(2, **sections), "0" * 64, {})

    assert parts(**zero(1)) != parts(**zero(2))
    assert parts(**zero(2))["versions"]["deepspeed"] == version("deepspeed")
    assert "deepspeed" not in parts()["versions"]


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "find_spec", lambda _: None)
    trainer.check_dataset(settings(2), small_version)
    with pytest.raises(SettingError, match=r"install it by `make setup EXTRAS=all`"):
        trainer.check_dataset(settings(2, **zero(2)), small_version)
