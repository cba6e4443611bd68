"""P1a: Evergreen's loop on Ray Train and the same loop function under `torchrun`: what Ray costs during training.

Both sides must produce the same weights, bit for bit. The replay check, which runs once per training, is off; row N2
measures it.
"""

from benchmarks.harness.row import Claim, Outcome, Row, Workspace
from training.attempts.job import TrainingJob


def prepare(workspace: Workspace) -> None:
    """Prepare the dataset version."""
    _job(workspace)


def on_ray(workspace: Workspace) -> Outcome:
    """A: `training.supervision.launch` with two workers."""
    from benchmarks.baselines.on_ray import launch_on_ray
    from benchmarks.baselines.trainings import steady_rows_per_s, what_was_done

    job = _job(workspace)
    trained = launch_on_ray(job)
    return Outcome({"rows_per_s": steady_rows_per_s(job.paths, trained)}, what_was_done(trained))


def under_torchrun(workspace: Workspace) -> Outcome:
    """B: two processes under `torchrun`."""
    from benchmarks.baselines.same_loop import launch_by_torchrun
    from benchmarks.baselines.trainings import steady_rows_per_s, what_was_done

    job = _job(workspace)
    trained = launch_by_torchrun(job)
    return Outcome({"rows_per_s": steady_rows_per_s(job.paths, trained)}, what_was_done(trained))


def _job(workspace: Workspace) -> TrainingJob:
    from benchmarks.baselines.trainings import job_of, version_of

    settings = {
        "training": {"epochs": workspace.pick(3, 3, 2), "global_batch_size": 128},
        "scaling": {"num_workers": 2},
        "checkpoint": {"replay": False},
    }
    return job_of(
        workspace.own / "home",
        version_of(workspace.data, workspace.pick(2560, 1280, 512)),
        "resnet",
        settings,
    )


ROW = Row(
    id="P1a",
    sides={"a": on_ray, "b": under_torchrun},
    claims=(
        Claim(
            "P1a",
            "Evergreen's loop on Ray Train / under torchrun, ResNet-18, 2 processes",
            of="rows_per_s",
            unit="rows/s",
            goal=0.99,
            at_least=True,
        ),
    ),
    prepare=prepare,
    same=("rows", "checksums", "weights"),
    warm_up=False,
    quick=True,
)
