"""P3a: the cost of feeding real images to a real model. Side B is fed the same batch in every step.

Epochs of a single training alternate, because two trainings of equal work differ by more than the 3 % in question.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.baselines.trainings import job_of, version_of
from benchmarks.harness.row import Claim, Outcome, Row, Workspace
from training.trainers.network.feeds import Batch, Feed

_THREADS = 2
_TURNS = ("real", "same")


def prepare(workspace: Workspace) -> None:
    """Prepare the dataset version."""
    _version(workspace)


def in_turns(workspace: Workspace) -> Outcome:
    """ResNet-18 in one process: rows per second of each epoch except the first, which is warm-up."""
    from training.supervision.launch import launch
    from training.trainers.torch import worker

    build = worker.build_feed
    worker.build_feed = lambda *given: InTurns(build(*given))
    rounds = workspace.pick(3, 3, 1)
    settings = {
        "training": {"epochs": 1 + len(_TURNS) * rounds, "global_batch_size": 64},
        "scaling": {"num_workers": 0, "threads_per_worker": _THREADS},
        "checkpoint": {"every_s": 3600},
    }
    trained = launch(job_of(workspace.own / "home", _version(workspace), "resnet", settings))
    speeds: dict[str, list[float]] = {turn: [] for turn in _TURNS}
    for number, epoch in enumerate(trained.history[1:], start=1):
        speeds[_turn(number)].append(epoch.images_per_s)
    return Outcome(speeds)


def _turn(epoch: int) -> str:
    """Feed of an epoch, counted from 0: the order is mirrored each time, so that a drift affects both feeds alike."""
    number, position = divmod(epoch - 1, len(_TURNS))
    return _TURNS[position if number % 2 == 0 else -1 - position]


@dataclass
class InTurns:
    """A feed that repeats one batch in every second epoch, without reading the data again."""

    real: Feed
    exact: bool = True
    _batch: Batch | None = None

    @property
    def steps_per_epoch(self) -> int:
        """As many steps as the real feed has."""
        return self.real.steps_per_epoch

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """The batches of the real feed, or its first batch in every step."""
        if epoch and _turn(epoch) == "same":
            if self._batch is None:
                self._batch = next(self.real.batches(epoch, first_step))
            for _ in range(first_step, self.steps_per_epoch):
                yield self._batch
        else:
            yield from self.real.batches(epoch, first_step)


def _version(workspace: Workspace) -> Any:
    return version_of(workspace.data, workspace.pick(2560, 1280, 256))


ROW = Row(
    id="P3a",
    sides={"a": in_turns},
    claims=(
        Claim(
            "P3a",
            "ResNet-18 fed with real images / with one repeated batch",
            of="real",
            of_b="same",
            b="a",
            unit="rows/s",
            goal=0.97,
            at_least=True,
            note="epochs of one training alternate; one training is one observation",
        ),
    ),
    prepare=prepare,
    threads=_THREADS,
    warm_up=False,
)
