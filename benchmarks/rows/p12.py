"""P12: how long a step waits for a checkpoint that is verified and durable. B calls `torch.save` in the loop."""

import os
import time
from typing import Any

from benchmarks.harness.row import Claim, Outcome, Place, Row

_BATCH = 32


def prepare(place: Place) -> None:
    """The dataset version."""
    _version(place)


def evergreen(place: Place) -> Outcome:
    """A: `training.launch` of ResNet-18; its own account of the time that checkpoints took from the loop."""
    from benchmarks.baselines.trainings import job_of
    from training.checkpoint import STATE
    from training.launch import launch

    os.sync()  # what the run before left to the disk
    every = _steps_between(place)
    settings = {
        "training": {"epochs": 2, "global_batch_size": _BATCH},
        "scaling": {"num_workers": 0},
        "checkpoint": {"every_steps": every, "every_s": 3600},
    }
    job = job_of(place.own / "home", _version(place), "resnet", settings)
    trained = launch(job)
    per_epoch = trained.steps // 2
    saves = 2 * (1 + (per_epoch - 1) // every)
    size = max(file.stat().st_size for file in job.paths.checkpoints.glob(f"*/{STATE}"))
    return Outcome({"ms": 1000 * trained.goodput.parts["checkpoint"] / saves}, {"bytes": size})


def in_the_loop(place: Place) -> Outcome:
    """B: the same model and optimizer, and a `torch.save` after as many steps."""
    import torch
    import torch.nn.functional as functional

    from training.recipes.mnist import resnet18

    torch.set_num_threads(1)
    os.sync()
    model = resnet18((1, 28, 28), 10)
    optimizer = torch.optim.AdamW(model.parameters())
    images, labels = torch.rand((_BATCH, 1, 28, 28)), torch.arange(_BATCH) % 10
    file, taken = place.own / "checkpoint.pt", []
    for save in range(place.pick(8, 5, 3)):
        for _ in range(_steps_between(place)):
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        began = time.perf_counter()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": save}
        torch.save(state, file)
        taken.append(time.perf_counter() - began)
    return Outcome({"ms": 1000 * sum(taken) / len(taken)}, {"bytes": file.stat().st_size})


def _steps_between(place: Place) -> int:
    """About two seconds of work on one core, so that a write is over before the next one."""
    return place.pick(16, 12, 4)


def _version(place: Place) -> Any:
    from benchmarks.baselines.trainings import version_of

    return version_of(place.data, place.pick(2560, 1280, 256))


ROW = Row(
    id="P12",
    sides={"a": evergreen, "b": in_the_loop},
    claims=(
        Claim(
            "P12",
            "a step waits for a checkpoint / for torch.save",
            of="ms",
            unit="ms",
            goal=0.1,
            at_least=False,
        ),
    ),
    prepare=prepare,
    close={"bytes": 0.02},
    quick=True,
)
