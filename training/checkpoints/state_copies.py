"""The state of a training as it was at one step, kept apart so that training may go on while it is written."""

from collections.abc import Iterator, Set
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
        self._outstanding: list[tuple[torch.Tensor, torch.Tensor]] = []

    def take(self, value: Any, steady: Set[int] = frozenset()) -> Any:
        """A copy whose tensors live in ordinary memory.

        Tensors at the addresses in `steady` are filled in by :meth:`fill`, in any thread; until it has returned,
        they may not change.
        """
        self._outstanding = []
        kept = self._kept.pop(0)
        used: list[torch.Tensor] = []
        copied = self._copy(value, iter(kept), used, steady)
        self._kept.append(used)
        return copied

    def fill(self) -> None:
        """Copy what the newest :meth:`take` left out."""
        while self._outstanding:
            place, tensor = self._outstanding.pop()
            place.copy_(tensor)

    def _copy(
        self, value: Any, kept: "Iterator[torch.Tensor]", used: "list[torch.Tensor]", steady: Set[int]
    ) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            place = next(kept, None)
            if place is None or _layout(place) != _layout(value):
                place = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
            used.append(place)
            if value.data_ptr() in steady:
                self._outstanding.append((place, value.detach()))
                return place
            return place.copy_(value.detach())
        if isinstance(value, dict):
            return {key: self._copy(item, kept, used, steady) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copy(item, kept, used, steady) for item in value)
        return value


def _layout(tensor: "torch.Tensor") -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.stride()
