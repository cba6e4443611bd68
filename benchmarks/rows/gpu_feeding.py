"""G1: ResNet-18 and a ViT on a GPU, fed from the dataset version; side B takes the same steps on data on the GPU.

Mixed precision (bfloat16); all other settings are the defaults.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.baselines.cifar import job_on_gpu, unavailable, version_of
from benchmarks.harness.row import Claim, Outcome, Row, Workspace
from training.trainers.network.feeds import Batch, Feed

_RECIPES = {"resnet": "cifar10-resnet", "vit": "cifar10-vit"}


def prepare(workspace: Workspace) -> None:
    """Prepare the dataset version."""
    version_of(workspace)


def fed(workspace: Workspace, model: str) -> Outcome:
    """A: rows are gathered and copied to the GPU in every step."""
    return _train(workspace, model)


def resident(workspace: Workspace, model: str) -> Outcome:
    """B: all batches of an epoch are on the GPU before the measurement starts."""
    from training.trainers.torch import worker

    build = worker.build_feed
    worker.build_feed = lambda *given: ResidentFeed(build(*given))
    return _train(workspace, model)


@dataclass
class ResidentFeed:
    """A feed that keeps the first epoch's batches on the device and returns them in every epoch."""

    real: Feed
    exact: bool = True
    _batches: list[Batch] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """As many steps as the real feed has."""
        return self.real.steps_per_epoch

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """The stored batches of the first epoch, from `first_step` on."""
        if self._batches is None:
            self._batches = list(self.real.batches(0, 0))
        del epoch
        yield from self._batches[first_step:]


def _train(workspace: Workspace, model: str) -> Outcome:
    from benchmarks.baselines.trainings import steady_rows_per_s
    from training.supervision.launch import launch

    epochs = {"resnet": workspace.pick(12, 4, 2), "vit": workspace.pick(5, 2, 2)}[model]
    job = job_on_gpu(workspace, _RECIPES[model], {"epochs": epochs, "precision": "bfloat16"})
    trained = launch(job)
    did: dict[str, Any] = {f"{model}_rows": [epoch.rows for epoch in trained.history]}
    return Outcome({"images_per_s": steady_rows_per_s(job.paths, trained)}, did)


def _claim(model: str, name: str) -> Claim:
    return Claim(
        f"G1-{model}",
        f"{name} on a GPU, fed / on data on the GPU",
        of="images_per_s",
        unit="images/s",
        goal=0.97,
        at_least=True,
        a=f"{model}-fed",
        b=f"{model}-resident",
    )


ROW = Row(
    id="G1",
    sides={
        f"{model}-{how.__name__}": partial(how, model=model) for model in _RECIPES for how in (fed, resident)
    },
    claims=(_claim("resnet", "ResNet-18"), _claim("vit", "the ViT")),
    prepare=prepare,
    same=("resnet_rows", "vit_rows"),
    optional=("resnet_rows", "vit_rows"),
    others=(),
    warm_up=False,
    unavailable=unavailable,
)
