"""`training.strategy=fsdp` on two workers: each has a part of the state, and a kill changes no bit."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from crashes import crashed, outcome
from divided_runs import STEPS, attempt, checkpoints, job, settings
from safetensors import safe_open
from slow_runs import send, when_at_step

from training.attempts.history import read_attempts
from training.checkpoints.checkpoint_files import read_manifest, read_state
from training.checkpoints.opening import stored_run
from training.checkpoints.parts import whole
from training.checkpoints.weights import weights_digest
from training.errors import SettingError
from training.identity import ingredients
from training.recipe import load
from training.records import DatasetVersion
from training.settings.overrides import parse_assignments, resolve
from training.storage.paths import Home
from training.supervision.launch import launch


def rows_of_parts(checkpoint: Path) -> list[int]:
    """Rows of the momentum of the first layer in each part of a checkpoint."""
    rows = []
    for file in sorted(checkpoint.glob("part-*.safetensors")):
        with safe_open(file, "pt") as part:
            rows.append(part.get_slice("learner/optimizer/state/0/exp_avg").get_shape()[0])
    return rows


@pytest.mark.slow
def test_a_killed_worker_changes_no_bit_and_one_worker_reads_the_checkpoint_of_two(
    small_version: DatasetVersion, home: Home, tmp_path: Path
) -> None:
    hit, calm = job(home, small_version), job(Home(tmp_path / "calm"), small_version)
    killing = when_at_step(hit.paths, 7, send(1, signal.SIGKILL), past_first_step=False)
    assert attempt(hit) is None
    killing.join()
    trained, undisturbed = attempt(hit), attempt(calm)
    assert trained is not None
    assert undisturbed is not None
    assert [record.world_size for record in read_attempts(hit.paths)] == [2, 2]
    assert read_attempts(hit.paths)[1].first_step >= 3
    assert undisturbed.reproducible, undisturbed.reproducible_reason
    assert outcome(hit, trained) == outcome(calm, undisturbed)
    *_, before, newest = checkpoints(calm)
    assert rows_of_parts(newest) == rows_of_parts(before) == [2, 1]  # of the three filters of the first layer
    weights = whole(read_state(newest, read_manifest(newest))["learner"]["model"])
    assert weights_digest(weights) == trained.weights_digest
    shutil.rmtree(newest)
    shutil.rmtree(calm.paths.model)
    assert launch(calm.model_copy(update={"settings": settings(workers=0)})).steps == STEPS
    newest_attempt = read_attempts(calm.paths)[-1]
    assert (newest_attempt.world_size, newest_attempt.first_step) == (1, 9)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])  # sgd is fused on one worker alone
def test_two_workers_read_the_checkpoint_of_one_in_an_object_store(
    small_version: DatasetVersion, home: Home, optimizer: str
) -> None:
    store = {"storage": {"url": f"file://{home.root}-store"}, "training": {"optimizer": optimizer}}
    alone = job(home, small_version, workers=0, **store)
    crashed(alone, 7)
    trained = attempt(alone.model_copy(update={"settings": settings(workers=2, **store)}))
    assert trained is not None
    assert [(record.world_size, record.first_step) for record in read_attempts(alone.paths)] == [
        (1, 0),
        (2, 6),
    ]
    assert trained.reproducible, trained.reproducible_reason
    run = stored_run(alone)
    assert run is not None
    files = {file.name for file in run.state().checkpoints[-1].files}
    assert {
        f"step-000000012/part-0000{rank}.{kind}" for rank in (0, 1) for kind in ("json", "safetensors")
    } <= files


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_killed_ray_worker_changes_no_bit(
    small_version: DatasetVersion, home: Home, tmp_path: Path
) -> None:
    hit, calm = job(home, small_version), job(Home(tmp_path / "calm"), small_version)
    killing = when_at_step(hit.paths, 7, send(1, signal.SIGKILL), past_first_step=False)
    trained, undisturbed = launch(hit), launch(calm)
    killing.join()
    first, second = read_attempts(hit.paths)
    assert (first.world_size, second.world_size, second.first_step > 0) == (2, 2, True)
    assert outcome(hit, trained) == outcome(calm, undisturbed)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.virtual_shards=2", "training.virtual_shards: not supported with training.strategy=fsdp"),
        (
            "training.compile=true",
            "training.compile: .* set training.compile=false, or training.strategy=ddp",
        ),
        ("training.channels_last=true", "training.channels_last: not supported with training.strategy=fsdp"),
        ("training.precision=float16", "training.precision: .* set training.precision=bfloat16"),
        ("training.strategy=zero", "training.strategy: Input should be 'ddp', 'fsdp' or 'deepspeed'"),
    ],
)
def test_what_can_not_work_is_refused(assignment: str, message: str) -> None:
    given = settings(1).model_copy(deep=True)
    given = resolve(given, {"scaling": {"use_gpu": "auto"}})
    with pytest.raises(SettingError, match=message):
        resolve(given, parse_assignments([assignment]))


def test_the_strategy_is_part_of_the_run_key() -> None:
    def parts(strategy: str) -> dict[str, Any]:
        return ingredients(load("digits")[1], settings(2, training={"strategy": strategy}), "0" * 64, {})

    assert parts("ddp") != parts("fsdp")
