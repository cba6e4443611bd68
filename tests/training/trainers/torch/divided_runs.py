"""Trainings of two workers, each with its part of the state, in processes of the test or of Ray."""

from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from small_runs import job_for, tiny_settings, write_recipe

from training.attempts.fence import Fence
from training.attempts.job import TrainingJob
from training.checkpoints.opening import stored_run
from training.recipe_copy import keep_copy
from training.records import DatasetVersion, TrainedModel
from training.settings.schema import Settings
from training.storage.paths import Home
from training.supervision.launch import finished
from training.trainers.ranks import Ranks
from training.trainers.torch.worker import run_worker

# 1 049 600 weights in the middle layer: a unit of its own.
MODEL = """nn.Sequential(
        nn.Conv2d(shape[0], 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
        nn.Linear(3 * (shape[1] - 2) * (shape[2] - 2), 1024), nn.Linear(1024, 1024), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(1024, classes))"""
STEPS = 12


def settings(workers: int, **sections: Any) -> Settings:
    training = {
        "strategy": "fsdp",
        "global_batch_size": 48,
        "epochs": 2,
        "clip_norm": 1.0,
        "accumulation_steps": 2,
    }
    return tiny_settings(
        training=training | sections.pop("training", {}),
        scaling={"num_workers": workers, "use_gpu": "no"} | ({"cpus_per_worker": 0.5} if workers else {}),
        checkpoint={"every_steps": 3},
        tracking={"log_every_steps": 1, "system_metrics": False},
        **sections,
    )


def job(
    home: Home, version: DatasetVersion, workers: int = 2, model: str = MODEL, **sections: Any
) -> TrainingJob:
    recipe = write_recipe(home.root / "own", model, augmentation="shift=1")
    return job_for(home, version, settings(workers, **sections), recipe)


def checkpoints(run: TrainingJob) -> list[Path]:
    return sorted(run.paths.checkpoints.glob("step-*"))


def _work(rank: int, world: int, store: Path, job: TrainingJob) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    run_worker(job, Ranks(rank, world, torch.device("cpu"), distributed=True))
    dist.destroy_process_group()


def attempt(job: TrainingJob, world: int = 2) -> TrainedModel | None:
    """Run one attempt in processes of its own; if one ends early, the others are killed. The model, if finished."""
    keep_copy(job.recipe, job.paths.recipe)
    fence = Fence.begin(job.paths)
    if (run := stored_run(job)) is not None:
        run.begin("", fence.number)
    job = job.model_copy(update={"attempt": fence.number, "driver": ""})
    spawn, store = (
        mp.get_context("spawn"),
        job.paths.root.parent / f"ranks-{job.paths.root.name}-{fence.number}",
    )
    workers = [spawn.Process(target=_work, args=(rank, world, store, job)) for rank in range(world)]
    for worker in workers:
        worker.start()
    wait([worker.sentinel for worker in workers])
    for worker in workers:
        worker.join(5 if any(process.exitcode for process in workers) else None)
        worker.kill()
        worker.join()
    return finished(job.paths, job.run_key)
