"""Copies of the training state at one step, so that training continues while the copy is written to disk."""

from collections import Counter
from collections.abc import Iterator, Set
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class StateCopies:
    """Double buffer for copies of nested state: dicts, lists and tuples with tensors in them.

    Buffers are reused, because allocating memory takes several times as long as the copy itself. A new copy does not
    overwrite the previous copy, but the copy before the previous: the caller must no longer need that.
    """

    def __init__(self) -> None:
        self._kept: list[list[torch.Tensor]] = [[], []]
        self._outstanding: list[tuple[torch.Tensor, torch.Tensor]] = []

    def take(self, value: Any, steady: Set[int] = frozenset()) -> Any:
        """A copy of `value` with its tensors in CPU memory, pinned for tensors from a GPU.

        Tensors whose addresses are in `steady` are copied later, by :meth:`fill`, which any thread may call; they
        must not change until :meth:`fill` has returned.
        """
        self._outstanding = []
        kept = self._kept.pop(0)
        used: list[torch.Tensor] = []
        copied = self._copy(value, iter(kept), used, steady)
        self._kept.append(used)
        return copied

    def fill(self) -> None:
        """Copy the `steady` tensors that the newest :meth:`take` skipped."""
        while self._outstanding:
            copy, tensor = self._outstanding.pop()
            copy.copy_(tensor)

    def _copy(
        self, value: Any, kept: "Iterator[torch.Tensor]", used: "list[torch.Tensor]", steady: Set[int]
    ) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            copy = next(kept, None)
            if copy is None or _layout(copy) != _layout(value):
                copy = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
            used.append(copy)
            if value.data_ptr() in steady:
                self._outstanding.append((copy, value.detach()))
                return copy
            return copy.copy_(value.detach())
        if isinstance(value, dict):
            copied = {key: self._copy(item, kept, used, steady) for key, item in value.items()}
            return Counter(copied) if type(value) is Counter else copied
        if isinstance(value, list | tuple):
            return type(value)(self._copy(item, kept, used, steady) for item in value)
        return value


def _layout(tensor: "torch.Tensor") -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.stride()
