"""P12: how long a step waits for a verified, durable checkpoint. Side B calls `torch.save` in the loop."""

import os
import time

from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_BATCH = 32


def prepare(workspace: Workspace) -> None:
    """Write the images."""
    from benchmarks.baselines.images import idx_folder

    idx_folder(workspace.data, workspace.pick(2560, 1280, 256))


def evergreen(workspace: Workspace) -> Outcome:
    """A: `evergreen retrain` of ResNet-18 on two workers, which records how long its loop waited for checkpoints."""
    from benchmarks.baselines.images import idx_folder
    from benchmarks.baselines.retraining import retrain
    from benchmarks.baselines.trainings import recipe_file
    from training.checkpoints.checkpoint_files import STATE

    os.sync()  # flush the disk writes of the previous run
    every = _steps_between(workspace)
    settings = {
        "data.path": str(idx_folder(workspace.data, workspace.pick(2560, 1280, 256))),
        "training.epochs": "2",
        "training.global_batch_size": str(_BATCH),
        "checkpoint.every_steps": str(every),
        "checkpoint.every_s": "3600",
        "scaling.use_gpu": "no",
    }
    run = retrain(workspace.own / "home", recipe_file("resnet"), settings)
    trained = run.trained()
    per_epoch = trained.steps // 2
    saves = 2 * (1 + (per_epoch - 1) // every)
    size = max(file.stat().st_size for file in run.paths.checkpoints.glob(f"*/{STATE}"))
    return Outcome({"ms": 1000 * trained.goodput.parts["checkpoint"] / saves}, {"bytes": size})


def in_the_loop(workspace: Workspace) -> Outcome:
    """B: the same model and optimizer, with a `torch.save` after the same number of steps."""
    import torch
    import torch.nn.functional as functional

    from training.recipes.mnist import resnet18

    torch.set_num_threads(1)
    os.sync()
    model = resnet18((1, 28, 28), 10)
    optimizer = torch.optim.AdamW(model.parameters())
    images, labels = torch.rand((_BATCH, 1, 28, 28)), torch.arange(_BATCH) % 10
    file, taken = workspace.own / "checkpoint.pt", []
    for save in range(workspace.pick(8, 5, 3)):
        for _ in range(_steps_between(workspace)):
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        began = time.perf_counter()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": save}
        torch.save(state, file)
        taken.append(time.perf_counter() - began)
    return Outcome({"ms": 1000 * sum(taken) / len(taken)}, {"bytes": file.stat().st_size})


def _steps_between(workspace: Workspace) -> int:
    """Steps for about two seconds of work on one core, so that a write ends before the next write starts."""
    return workspace.pick(16, 12, 4)


ROW = Row(
    id="P12",
    sides={"a": evergreen, "b": in_the_loop},
    claims=(
        Claim(
            "P12",
            "wait of a step for a checkpoint / for torch.save",
            of="ms",
            unit="ms",
            goal=0.1,
            at_least=False,
        ),
    ),
    prepare=prepare,
    close={"bytes": 0.02},
    warm_up=False,
)
