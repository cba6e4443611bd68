"""Boosting rounds in blocks, and what a library of boosted trees does for the loop.

During a training such a library keeps more state than the model: its random generator, the columns drawn for a tree,
sums of predictions. A checkpoint holds the model only. So every block of :data:`ROUNDS_PER_BLOCK` rounds begins in the
state of a model that was just loaded, with a seed that depends on the round, whether or not the training was
interrupted. A training that resumes at the start of a block then computes the same bits as an uninterrupted training,
with and without sampling. The replay check compares both ways once in each run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from training.data.sample_order import stream_key

ROUNDS_PER_BLOCK = 10
# Settings of the section `training` that no library gets as a parameter.
NO_PARAMETERS = frozenset(
    {"trainer", "rounds", "select", "early_stopping_rounds", "class_weights", "threshold"}
)
_BLOCK = 7  # stream of random numbers, see training.data.sample_order

Model = TypeVar("Model")
Measures = tuple[float, ...]  # of one worker, equally many on all workers


@dataclass(frozen=True)
class Round:
    """Loss and metric of the model after a round, over the rows of all workers."""

    train_loss: float
    train_score: float
    validation_loss: float
    validation_score: float


@dataclass(frozen=True)
class Block:
    """The boundary of a block: the number of rounds before it, and the model of these rounds (empty at 0)."""

    round: int
    content: bytes


class Boosting(Protocol[Model]):
    """One worker's rows and the parameters of the trees, for a library whose models are of the type `Model`."""

    @property
    def library(self) -> str:
        """The library's name in messages."""

    @property
    def version(self) -> str:
        """The library's version."""

    @property
    def device(self) -> str:
        """The kind of device that computes: `cpu` or `cuda`."""

    @property
    def metric(self) -> str:
        """Name of the metric of each round."""

    @property
    def learning_rate(self) -> float:
        """The learning rate (shrinkage): the factor by which the values of each new tree are multiplied."""

    def model(self, content: bytes, round_number: int) -> Model:
        """Build the model of the first `round_number` rounds from its bytes, which are empty before the first round.

        `round_number` is the start of a block.
        """

    def next_block(self, model: Model, round_number: int) -> Model:
        """The model at the start of the block that begins at round `round_number`, from the model at the end before it.

        The state equals that of `self.model(self.content(model), round_number)`. That call would compute the
        predictions of all trees so far again; the time of all such calls of a training grows with the square of the
        number of rounds.
        """

    def advance(self, model: Model, round_number: int) -> None:
        """Compute round `round_number` (0 is the first); all workers take part."""

    def measure(self, model: Model, round_number: int) -> Measures:
        """Numbers of this worker after round `round_number`, for :meth:`combined`; all workers take part."""

    def combined(self, measures: Sequence[Sequence[float]]) -> Round:
        """Loss and metric over the rows of all workers, from the measures of each, in the order of ranks."""

    def content(self, model: Model) -> bytes:
        """The model's bytes; equal models have equal bytes."""

    def first_rounds(self, content: bytes, rounds: int) -> bytes:
        """The bytes of the model of the first `rounds` rounds, from those of a model of at least as many."""


def block_seed(seed: int, round_number: int) -> int:
    """The library's seed for the block that begins at round `round_number` of a run with seed `seed`."""
    return int(stream_key(seed, round_number, _BLOCK) >> np.uint64(33))


def block_end(round_number: int, rounds: int) -> int:
    """The end of the block that contains round `round_number`, in a training of `rounds` rounds."""
    return min(rounds, round_number - round_number % ROUNDS_PER_BLOCK + ROUNDS_PER_BLOCK)
