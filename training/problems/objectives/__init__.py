"""What a training minimises and reports, by problem: the part of a learning problem that changes the weights.

Of a problem with a module here, only this module is in the run key: a change of how models are scored or described
retrains nothing. Of a problem in a single file, the file is in the run key, with the modules of `training/problems/`
that it imports.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, Protocol, cast

from training.records import DatasetVersion, ProblemName
from training.seams import PROBLEMS

if TYPE_CHECKING:
    import torch


class Objective(Protocol):
    """The objective of a training. `metric` names the number that a trainer reports beside the loss.

    `target` says how the target of a table is read: as one of some classes, or as a number. `smooths` says whether
    the loss has label smoothing.

    A trainer of networks uses the operations below. Another trainer knows `loss` and `metric` by their names, as
    `training/trainers/xgboost/objectives.py` does, and refuses an objective that it does not know.

    An objective whose rows may have weights has the method :class:`WeighsRows`.

    An objective whose outputs need much memory may have a method `most_rows(version)`: the number of rows of a
    validation's forward pass.
    """

    @property
    def loss(self) -> str:
        """Name of the loss that a training minimises, such as "cross_entropy" or "squared_error"."""

    @property
    def target(self) -> Literal["class", "number"]:
        """Kind of the target."""

    @property
    def smooths(self) -> bool:
        """Whether :meth:`torch_sums` applies `smoothing`."""

    @property
    def metric(self) -> str:
        """Name of the metric, such as "accuracy"; no other problem has a metric of this name."""

    def outputs(self, version: DatasetVersion) -> int:
        """Number of values that a neural network gives for a row."""

    def torch_sums(
        self, output: "torch.Tensor", targets: "torch.Tensor", version: DatasetVersion, smoothing: float = 0.0
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Sum of losses over the rows of a batch (with gradient), and the sum from which :meth:`reduced` computes.

        `output` is a network's output (rows, :meth:`outputs`). `smoothing` is `training.label_smoothing`.
        """

    def torch_targets(self, targets: "torch.Tensor", version: DatasetVersion) -> "torch.Tensor":
        """Convert targets (rows,) to what PyTorch's loss functions take.

        Class numbers int64 (rows,); for a regression, standardised float32 (rows, 1); for a language model, the numbers
        of predicted tokens (rows,).
        """

    def torch_predictions(self, output: "torch.Tensor", version: DatasetVersion) -> "torch.Tensor":
        """Predictions from a network's output, by operations that torch.export supports."""

    def reduced(self, total: float, rows: float) -> float:
        """The metric, from the sum over `rows` rows that :meth:`torch_sums` gave."""


class WeighsRows(Protocol):
    """What an objective has besides, if its rows may have weights."""

    def torch_weighted_sums(
        self,
        output: "torch.Tensor",
        targets: "torch.Tensor",
        version: DatasetVersion,
        weights: "torch.Tensor",
        smoothing: float = 0.0,
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """The sums of :meth:`Objective.torch_sums` with each row's number multiplied by its weight (rows,)."""


def takes_weights(name: ProblemName) -> bool:
    """Whether the rows of this problem may have weights."""
    return hasattr(objective_named(name), "torch_weighted_sums")


def sums_of(
    objective: Objective,
    output: "torch.Tensor",
    targets: "torch.Tensor",
    version: DatasetVersion,
    smoothing: float = 0.0,
    weights: "torch.Tensor | None" = None,
) -> "tuple[torch.Tensor, torch.Tensor]":
    """The sums of :meth:`Objective.torch_sums`, with weights those of :class:`WeighsRows`."""
    if weights is None:
        return objective.torch_sums(output, targets, version, smoothing)
    return cast(WeighsRows, objective).torch_weighted_sums(output, targets, version, weights, smoothing)


def objective_named(name: ProblemName) -> Objective:
    """The objective of the problem with this name; `OBJECTIVE` of its module."""
    return cast(Objective, import_module(objective_module(name)).OBJECTIVE)


def objective_module(name: ProblemName) -> str:
    """Name of the module with the objective of a problem: of this package, or that of a problem in a single file."""
    own = f"{__name__}.{name}"
    return own if find_spec(own) is not None else PROBLEMS[name].partition(":")[0]
