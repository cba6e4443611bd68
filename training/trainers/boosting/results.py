"""The results of rounds: what the workers tell each other after rounds, and when."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

import torch  # noqa: TID253 - imported by processes that train

from training.trainers.boosting.rounds import Boosting, Measures, Model, Round
from training.trainers.ranks import Ranks

# Seconds between two exchanges, in a training whose rounds are shorter: a little more than between two looks for
# requests, so that each exchange looks. An exchange takes 2 to 3 ms of a busy CPU.
_EXCHANGE_S = 0.25
_MOST_ROUNDS = 32  # of an exchange: a request to stop waits for them, even if they become slower


@dataclass
class Exchange:
    """What an exchange gave: the largest request of all workers, and the rounds since the last exchange.

    `results` are their results, `ended_at` are the times of their ends here in seconds since 1970, and `round_s` is
    their mean duration in seconds, with its share of the exchange.
    """

    request: int
    results: list[Round]
    ended_at: list[float]
    round_s: float


@dataclass
class Results(Generic[Model]):
    """The results of rounds that the workers have not exchanged yet. All workers call each method after the same round.

    Several short rounds are exchanged together. Their number follows from the duration of the rounds before, and is
    the same on all workers.
    """

    ranks: Ranks
    boosting: Boosting[Model]
    _waiting: list[Measures] = field(default_factory=list)
    _ended_at: list[float] = field(default_factory=list)  # of the waiting rounds
    _seconds: float = 0.0  # that the waiting rounds took
    _together: int = 1  # rounds of the next exchange

    def add(self, measures: Measures, seconds: float) -> None:
        """Add this worker's measures of a round, which took `seconds`."""
        self._waiting.append(measures)
        self._ended_at.append(time.time())
        self._seconds += seconds

    @property
    def are_due(self) -> bool:
        """Whether enough rounds wait for an exchange."""
        return len(self._waiting) >= self._together

    def exchange(self, request: int) -> Exchange:
        """Exchange the waiting rounds, of which there is at least one, and this worker's `request`."""
        began, count = time.perf_counter(), len(self._waiting)
        numbers = gathered(
            self.ranks, [request, self._seconds, *(each for row in self._waiting for each in row)]
        )
        width = len(self._waiting[0])
        results = [
            self.boosting.combined([row[2 + width * index :][:width] for row in numbers])
            for index in range(count)
        ]
        mean_s = max(row[1] for row in numbers) / count  # of the slowest worker
        self._together = rounds_together(self.ranks, mean_s)
        round_s = (self._seconds + time.perf_counter() - began) / count
        exchange = Exchange(int(max(row[0] for row in numbers)), results, self._ended_at, round_s)
        self._waiting, self._ended_at, self._seconds = [], [], 0.0
        return exchange


def rounds_together(ranks: Ranks, mean_s: float) -> int:
    """Number of rounds of the next exchange, if a round takes `mean_s` seconds; 1 for a worker without others."""
    if not ranks.distributed:
        return 1
    return max(1, min(_MOST_ROUNDS, int(_EXCHANGE_S / max(mean_s, 1e-6))))


def gathered(ranks: Ranks, numbers: Sequence[float]) -> list[list[float]]:
    """The `numbers` of each rank, equally many, in the order of ranks."""
    mine = torch.tensor(numbers, dtype=torch.float64, device=ranks.device)
    return [each.tolist() for each in ranks.gather(mine)]
