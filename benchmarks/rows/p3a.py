"""P3a: what feeding real images costs a real model. B is handed one batch again and again."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.baselines.trainings import job_of, steady_rows_per_s, version_of
from benchmarks.harness.row import Claim, Outcome, Place, Row
from training.feeds import Batch, Feed

_THREADS = 2


def prepare(place: Place) -> None:
    """The dataset version."""
    _version(place)


def real_ingest(place: Place) -> Outcome:
    """A: `training.launch` in one process, ResNet-18, rows gathered from the dataset version."""
    return _train(place)


def one_batch(place: Place) -> Outcome:
    """B: the same call; the first batch of the epoch stands for all."""
    from training import worker

    build = worker.build_feed
    worker.build_feed = lambda *given: SameBatch(build(*given))
    return _train(place)


@dataclass
class SameBatch:
    """A feed that gives one batch again and again, without looking at the data a second time."""

    real: Feed
    exact: bool = True
    _batch: Batch | None = None

    @property
    def steps_per_epoch(self) -> int:
        """As many steps as the real feed has."""
        return self.real.steps_per_epoch

    def batches(self, epoch: int, first_step: int) -> Iterator[Batch]:
        """The first batch, so many times."""
        if self._batch is None:
            self._batch = next(self.real.batches(epoch, first_step))
        for _ in range(first_step, self.steps_per_epoch):
            yield self._batch


def _version(place: Place) -> Any:
    return version_of(place.data, place.pick(2560, 1280, 256))


def _train(place: Place) -> Outcome:
    from training.launch import launch

    # 128 divides the rows that are learnt from, or the batch that stands for all would not have the mean size.
    settings = {
        "training": {"epochs": 3, "global_batch_size": 64},
        "scaling": {"num_workers": 0, "threads_per_worker": _THREADS},
        "checkpoint": {"every_s": 3600},
    }
    job = job_of(place.own / "home", _version(place), "resnet", settings)
    trained = launch(job)
    return Outcome(
        {"rows_per_s": steady_rows_per_s(job.paths, trained)},
        {"steps": trained.steps, "batch": job.settings.training.global_batch_size},
    )


ROW = Row(
    id="P3a",
    sides={"a": real_ingest, "b": one_batch},
    claims=(
        Claim(
            "P3a",
            "ResNet-18 fed with real images / with one batch again and again",
            of="rows_per_s",
            unit="rows/s",
            goal=0.97,
            at_least=True,
        ),
    ),
    prepare=prepare,
    same=("steps", "batch"),
    pairs=8,  # to tell 3 % apart
    threads=_THREADS,
)
