"""P11: seconds from the call to the first new step of a training that was interrupted in the middle of an epoch.

Side B resumes the same training at the start of an epoch. Both sides train to the end and must produce the same
weights.
"""

import shutil
import time
from pathlib import Path

from benchmarks.harness.row import Claim, Outcome, Row, Workspace
from training.attempts.job import TrainingJob
from training.records import TrainedModel


def prepare(workspace: Workspace) -> None:
    """Make a finished training with all its checkpoints."""
    from training.supervision.launch import launch

    launch(_job(workspace, workspace.shared / "home"))


def in_the_middle(workspace: Workspace) -> Outcome:
    """A: the newest checkpoint is in the middle of an epoch."""
    return _resume(workspace, in_epoch=True)


def at_the_start(workspace: Workspace) -> Outcome:
    """B: the newest checkpoint is at the end of an epoch."""
    return _resume(workspace, in_epoch=False)


def _job(workspace: Workspace, home: Path) -> TrainingJob:
    from benchmarks.baselines.trainings import job_of, version_of

    settings = {
        "training": {"epochs": 3, "global_batch_size": 128},
        "scaling": {"num_workers": 0},
        "checkpoint": {"every_steps": workspace.pick(50, 20, 2), "keep_newest": 1000},
        "tracking": {"log_every_steps": 1},
    }
    return job_of(home, version_of(workspace.data, workspace.pick(60_000, 20_000, 1_000)), "linear", settings)


def _resume(workspace: Workspace, in_epoch: bool) -> Outcome:
    """Median over several resumptions in one process; a first, uncounted resumption imports the modules."""
    from statistics import median

    from benchmarks.baselines.trainings import what_was_done

    taken = []
    for turn in range(1 + workspace.pick(7, 5, 1)):
        seconds, trained = _resume_once(workspace, f"home-{turn}", in_epoch)
        taken.append(seconds)
    return Outcome({"seconds": median(taken[1:])}, what_was_done(trained))


def _resume_once(workspace: Workspace, folder: str, in_epoch: bool) -> tuple[float, TrainedModel]:
    from benchmarks.baselines.trainings import first_point
    from training.supervision.launch import launch

    template, job = _job(workspace, workspace.shared / "home"), _job(workspace, workspace.own / folder)
    shutil.copytree(template.paths.root, job.paths.root)
    shutil.rmtree(job.paths.model)
    step = _forget_later(job, in_epoch)
    began = time.time()
    trained = launch(job)
    first = first_point(job.paths, step, since=began)
    assert first is not None
    return first.at - began, trained


def _forget_later(job: TrainingJob, in_epoch: bool) -> int:
    """Keep checkpoints up to one in the second epoch's middle, or up to the first epoch's end; return its step."""
    from training.checkpoints.checkpoint_files import read_manifest
    from training.checkpoints.checkpoint_log import Position

    checkpoints = []
    for folder in sorted(job.paths.checkpoints.glob("step-*")):
        noted = read_manifest(folder)
        checkpoints.append((folder, Position(noted.epoch, noted.step_in_epoch, noted.step)))
    second = [position for _, position in checkpoints if position.epoch == 1]
    starts = [position for position in second if position.step_in_epoch == 0]
    inside = [position for position in second if position.step_in_epoch > 0]
    chosen = inside[len(inside) // 2] if in_epoch else starts[0]
    for folder, position in checkpoints:
        if position.step > chosen.step:
            shutil.rmtree(folder)
    return chosen.step


ROW = Row(
    id="P11",
    sides={"a": in_the_middle, "b": at_the_start},
    claims=(
        Claim(
            "P11",
            "resume in the middle of an epoch / at an epoch's start, until the first new step",
            of="seconds",
            unit="s",
            goal=1.05,
            at_least=False,
        ),
    ),
    prepare=prepare,
    same=("weights", "rows", "checksums"),
    others=(),
    pairs=10,  # of 50 ms each, which other load on the machine can double
    warm_up=False,
    quick=True,
)
