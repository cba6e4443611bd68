"""P3a: what feeding real images costs a real model. B is handed one batch again and again.

Epochs of one training take turns, as two trainings of equal work differ by more than the 3 % in question here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.baselines.trainings import job_of, version_of
from benchmarks.harness.row import Claim, Outcome, Place, Row
from training.trainers.torch.feeds import Batch, Feed

_THREADS = 2
_TURNS = ("real", "same")


def prepare(place: Place) -> None:
    """The dataset version."""
    _version(place)


def in_turns(place: Place) -> Outcome:
    """ResNet-18 in one process: rows a second of each epoch but the first, which warms up."""
    from training.supervision.launch import launch
    from training.trainers.torch import worker

    build = worker.build_feed
    worker.build_feed = lambda *given: InTurns(build(*given))
    rounds = place.pick(3, 3, 1)
    settings = {
        "training": {"epochs": 1 + len(_TURNS) * rounds, "global_batch_size": 64},
        "scaling": {"num_workers": 0, "threads_per_worker": _THREADS},
        "checkpoint": {"every_s": 3600},
    }
    trained = launch(job_of(place.own / "home", _version(place), "resnet", settings))
    speeds: dict[str, list[float]] = {turn: [] for turn in _TURNS}
    for number, epoch in enumerate(trained.history[1:], start=1):
        speeds[_turn(number)].append(epoch.images_per_s)
    return Outcome(speeds)


def _turn(epoch: int) -> str:
    """What an epoch, counted from 0, is fed with: there and back again, so that a drift falls on all alike."""
    number, place = divmod(epoch - 1, len(_TURNS))
    return _TURNS[place if number % 2 == 0 else -1 - place]


@dataclass
class InTurns:
    """A feed that in every second epoch gives one batch again and again, without a second look at the data."""

    real: Feed
    exact: bool = True
    _batch: Batch | None = None

    @property
    def steps_per_epoch(self) -> int:
        """As many steps as the real feed has."""
        return self.real.steps_per_epoch

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """The real ones, or the first batch so many times."""
        if epoch and _turn(epoch) == "same":
            if self._batch is None:
                self._batch = next(self.real.batches(epoch, first_step))
            for _ in range(first_step, self.steps_per_epoch):
                yield self._batch
        else:
            yield from self.real.batches(epoch, first_step)


def _version(place: Place) -> Any:
    return version_of(place.data, place.pick(2560, 1280, 256))


ROW = Row(
    id="P3a",
    sides={"a": in_turns},
    claims=(
        Claim(
            "P3a",
            "ResNet-18 fed with real images / with one batch again and again",
            of="real",
            of_b="same",
            b="a",
            unit="rows/s",
            goal=0.97,
            at_least=True,
            note="epochs of one training in turns; one training is one observation",
        ),
    ),
    prepare=prepare,
    threads=_THREADS,
    warm_up=False,
)
