"""S1: training with virtual shards, whose gradients sum to the same bits on any number of workers, and plain DDP.

Both sides use two workers on Ray Train, without the replay check, which row N2 measures. The row has no goal: it
measures the cost of virtual shards.
"""

from collections.abc import Callable

from benchmarks.harness.row import Claim, Outcome, Row, Workspace


def _training(shards: int | None) -> Callable[[Workspace], Outcome]:
    def train(workspace: Workspace) -> Outcome:
        from benchmarks.baselines.on_ray import launch_on_ray
        from benchmarks.baselines.trainings import job_of, steady_rows_per_s, version_of, what_was_done

        settings = {
            "training": {"epochs": 3, "global_batch_size": 128, "virtual_shards": shards},
            "scaling": {"num_workers": 2},
            "checkpoint": {"replay": False},
        }
        job = job_of(
            workspace.own / "home",
            version_of(workspace.data, workspace.pick(1280, 1280, 512)),
            "resnet",
            settings,
        )
        trained = launch_on_ray(job)
        return Outcome({"rows_per_s": steady_rows_per_s(job.paths, trained)}, what_was_done(trained))

    return train


def _claim(shards: int) -> Claim:
    return Claim(
        f"S1-{shards}",
        f"training.virtual_shards={shards} / plain DDP, ResNet-18, 2 workers",
        of="rows_per_s",
        unit="rows/s",
        goal=None,
        at_least=True,
        a=f"shards_{shards}",
        b="ddp",
    )


ROW = Row(
    id="S1",
    sides={"shards_2": _training(2), "ddp": _training(None), "shards_4": _training(4)},
    claims=(_claim(2), _claim(4)),
    same=("rows", "checksums"),
    others=(),
    pairs=3,
    warm_up=False,
)
