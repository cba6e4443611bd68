"""The state of a training as it was at one step, kept apart so that training may go on while it is written."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class StateCopies:
    """Copies of nested state, one after the other, in two sets of memory that take turns.

    Fresh memory costs several times the copy itself. The newest copy is left alone while the next one is taken; the
    one before it must not be needed any more.
    """

    def __init__(self) -> None:
        self._kept: list[list[torch.Tensor]] = [[], []]

    def take(self, value: Any) -> Any:
        """A copy whose tensors live in ordinary memory, so that training may go on changing them."""
        kept = self._kept.pop(0)
        used: list[torch.Tensor] = []
        copied = self._copy(value, iter(kept), used)
        self._kept.append(used)
        return copied

    def _copy(self, value: Any, kept: "Iterator[torch.Tensor]", used: "list[torch.Tensor]") -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            place = next(kept, None)
            if place is None or _layout(place) != _layout(value):
                place = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
            used.append(place)
            return place.copy_(value.detach())
        if isinstance(value, dict):
            return {key: self._copy(item, kept, used) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copy(item, kept, used) for item in value)
        return value


def _layout(tensor: "torch.Tensor") -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.stride()
