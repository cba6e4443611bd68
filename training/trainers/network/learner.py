"""The model that is trained, as :class:`training.trainers.network.progress.Progress` calls it."""

from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any, Protocol

from training.data.dataset import Columns
from training.data.sample_order import Rows

if TYPE_CHECKING:
    import torch


class Learner(Protocol):
    """The model that is trained, with all state that the next step depends on."""

    @property
    def unit(self) -> str:
        """What a row is called in names of metrics: "images" or "rows"."""

    def state(self) -> dict[str, Any]:
        """The state as tensors, numbers and text; the key "model" has the model's tensors.

        All ranks call this method; checkpoints hold the state of the first rank, and all ranks' rows of tensors that
        are given as :class:`training.checkpoints.parts.OwnRows`.
        """

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`state` returned, with :class:`training.checkpoints.parts.StoredRows`."""

    def same_weights(self) -> "list[torch.Tensor]":
        """The weights, which have the same bits on all ranks after each step; empty if each rank has a part."""

    def changed_by_update_alone(self) -> Set[int]:
        """Addresses of the tensors in :meth:`state` that nothing changes before the optimizer's next update."""

    def learning_rate(self, step: int) -> float:
        """The learning rate of optimizer step `step`; called after that step."""

    def validate(self, columns: Columns, rows: Rows, progress: Callable[[], None]) -> tuple[float, float]:
        """Mean loss and metric over `rows`, computed by all ranks together; calls `progress` after each batch."""

    def logged(self, at_epoch_end: bool) -> dict[str, float]:
        """Further metrics by name, equal on all ranks: of the newest step, or at the end of an epoch of that epoch.

        All ranks call this method; the metrics of an epoch include those of the recipe, over the validation rows.
        """
