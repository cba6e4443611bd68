"""The replay check when one worker can't read the checkpoint, because the object store is away: skipped, not failed."""

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from boosted_tables import boosted_job, mixed_table
from crashes import settings
from small_runs import job_for

from training.attempts.fence import Fence
from training.attempts.job import TrainingJob
from training.checkpoints import opening
from training.checkpoints.opening import stored_run
from training.errors import TransientError
from training.recipe_copy import keep_copy
from training.records import DatasetVersion
from training.storage.objects.local import LocalStore
from training.storage.paths import Home
from training.supervision.launch import finished
from training.trainers.base import trainer_named
from training.trainers.ranks import Ranks

_TWO = {"num_workers": 2, "cpus_per_worker": 0.5, "use_gpu": "no"}


class Away(LocalStore):
    """A store that answers no download."""

    def get_file(self, *_given: object) -> None:
        raise TransientError("storage.url: the store does not answer")


def _work(rank: int, folder: Path, jobs: tuple[TrainingJob, TrainingJob], port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=120),
    )
    job = jobs[rank]
    if rank:
        opening.open_store = lambda url: Away(url, folder / "store")  # type: ignore[attr-defined]
    trainer_named(job.settings.trainer).run_worker(job, Ranks(rank, 2, torch.device("cpu"), distributed=True))
    dist.destroy_process_group()


def begun(job: TrainingJob, folder: Path) -> tuple[TrainingJob, TrainingJob]:
    """The job as each of two workers without a common disk gets it."""
    stored = stored_run(job)
    assert stored is not None
    keep_copy(job.recipe, job.paths.recipe)
    job = job.model_copy(update={"attempt": stored.begin("driver", at_least=1), "driver": "driver"})
    Fence.begin(job.paths, "driver", job.attempt)
    other = folder / "other" / job.paths.root.name
    shutil.copytree(job.paths.root, other)
    return job, job.model_copy(update={"root": str(other)})


@pytest.mark.extended
@pytest.mark.parametrize("trainer", ["torch", pytest.param("xgboost", marks=pytest.mark.slow)])
def test_a_replay_that_can_t_read_its_checkpoint_is_skipped(
    home: Home, small_version: DatasetVersion, tmp_path: Path, trainer: str
) -> None:
    sections = {"scaling": _TWO, "storage": {"url": f"file://{tmp_path}/store"}}
    if trainer == "torch":
        # Virtual shards: without them, Ray Train wraps the model, which needs a worker of Ray.
        job = job_for(home, small_version, settings(training={"virtual_shards": 2}, **sections))
    else:
        table = mixed_table(home, home.root / "files", 200)
        job = boosted_job(home, table, training={"rounds": 30}, **sections)
    mp.spawn(_work, args=(tmp_path, begun(job, tmp_path), 1), nprocs=2, join=True)
    trained = finished(job.paths, job.run_key)
    assert trained is not None
    assert trained.reproducible is None
    assert "not checked: the checkpoint at step" in trained.reproducible_reason
    assert "could not be read back" in trained.reproducible_reason
