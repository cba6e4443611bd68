"""Numbers of a resumed training in which an error would not change the weights."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from crashes import points, settings
from small_runs import job_for

from training.checkpoints.checkpoint_log import Position
from training.errors import EvergreenError, TrainingError, TransientError
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.network.accumulators import Sums
from training.trainers.network.progress import Progress
from training.trainers.ranks import Ranks

SHARES = ([2.0, 3.0, 4.0, 5.0], [20.0, 30.0, 40.0, 50.0])  # loss, hits, rows and checksum of each old rank


def resumed(rank: int, world_size: int) -> Progress:
    """The progress of rank `rank` after it resumed from a checkpoint of two ranks."""
    progress = Progress.__new__(Progress)
    state = {"learner": {}, "history": [], "epoch_sums": [0.0] * 4, "interval_sums": list(SHARES)}
    progress.checkpoints = SimpleNamespace(load_newest=lambda: (Position(1, 1, 1), state))  # type: ignore[assignment]
    progress.metrics = SimpleNamespace(rewind=lambda _: None)  # type: ignore[assignment]
    progress.replay = SimpleNamespace(enter=lambda _: None)  # type: ignore[assignment]
    progress.total_steps = 2
    progress.learner = SimpleNamespace(load=lambda _: None)  # type: ignore[assignment]
    progress.ranks = Ranks(rank, world_size, torch.device("cpu"), distributed=False)
    progress.long_work = SimpleNamespace(on_all=lambda work: work())  # type: ignore[assignment]
    progress.carried = Sums()
    progress.resume()
    return progress


@pytest.mark.parametrize("rank", [0, 1])
def test_as_many_workers_each_go_on_with_their_own_sums(rank: int) -> None:
    assert resumed(rank, 2).carried == Sums(*SHARES[rank])


def test_the_first_of_another_number_of_workers_goes_on_with_all_sums() -> None:
    assert resumed(0, 3).carried == Sums(22.0, 33.0, 44.0, 55.0)
    assert resumed(1, 3).carried == Sums()


def test_the_learning_rate_of_a_point_is_that_of_the_step_before_it(
    home: Home, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[float] = []
    step = torch.optim.AdamW.step

    def recorded(self: torch.optim.AdamW, *given: Any) -> Any:
        used.append(self.param_groups[0]["lr"])
        return step(self, *given)

    monkeypatch.setattr(torch.optim.AdamW, "step", recorded)
    training = {"epochs": 2, "schedule": "cosine", "warmup_share": 0.3}
    chosen = settings(training=training, tracking={"log_every_steps": 1}, checkpoint={"replay": False})
    job = job_for(home, small_version, chosen)
    launch(job)
    shown = {
        at: values["train/learning_rate"] for at, _, values in points(job) if "train/learning_rate" in values
    }
    assert len(used) > 4
    assert len(set(used)) > 4
    assert shown == pytest.approx(dict(enumerate(used, start=1)))


@pytest.mark.parametrize(
    ("storage", "error"), [({}, TrainingError), ({"url": "file:///shared"}, TransientError)]
)
def test_workers_that_found_different_checkpoints_do_not_step(
    home: Home, small_version: DatasetVersion, storage: dict[str, str], error: type[EvergreenError]
) -> None:
    """With an object store, another process may commit while the workers read: the next attempt reads again."""
    progress = Progress.__new__(Progress)
    progress.job = job_for(home, small_version, settings(storage=storage))
    progress.checkpoints = SimpleNamespace(load_newest=lambda: None)  # type: ignore[assignment]
    progress.ranks = SimpleNamespace(all_equal=lambda _: False)  # type: ignore[assignment]
    progress.long_work = SimpleNamespace(on_all=lambda work: work())  # type: ignore[assignment]
    with pytest.raises(error, match="workers found different checkpoints"):
        progress.resume()
