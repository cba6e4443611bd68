"""Fully sharded data parallelism (`training.strategy=fsdp`): each rank holds its rows of all weights.

torch's `fully_shard` (FSDP2) gathers the weights of a unit of the model just before the unit computes, and sums each
rank's rows of the gradients; the optimizer then updates these rows alone. The method is ZeRO stage 3 (S. Rajbhandari et
al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020).
"""

import math
from collections.abc import Iterator
from typing import Any, cast

import torch  # noqa: TID253 - imported by processes that train, never by ones that plan or list
from torch import nn  # noqa: TID253
from torch.distributed.device_mesh import init_device_mesh  # noqa: TID253
from torch.distributed.fsdp import FSDPModule, fully_shard  # noqa: TID253
from torch.distributed.tensor import DTensor, Shard  # noqa: TID253

from training.checkpoints.parts import OwnRows, StoredRows, whole
from training.errors import SettingError
from training.trainers.own_loop.schedule import build_optimizer
from training.trainers.torch.collective import CollectiveReplica

UNIT_PARAMETERS = 1_000_000  # gathering fewer parameters at a time costs more than the memory that it saves


class FsdpReplica(CollectiveReplica):
    """A :class:`CollectiveReplica` of which each rank holds its rows: of weights, gradients and optimizer state."""

    sharded = True

    def shard(self) -> None:
        """Divide the weights among the ranks. Raises :class:`SettingError` for a scalar weight."""
        for name, weight in self.module.named_parameters():
            if not weight.dim():
                raise SettingError(
                    f"training.strategy: fsdp divides weights by rows, and {name} is a single number; give it the "
                    "shape (1,), or set training.strategy=ddp"
                )
        mesh = init_device_mesh(self.ranks.device.type, (self.ranks.world_size,))
        for unit in (*units(self.module), self.module):
            fully_shard(unit, mesh=mesh)
        self._forward_keeps_weights = True  # a pass changes gathered copies at most

    def build_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of this rank's rows of the weights."""
        return build_optimizer(self.options, self.module.parameters(), fused_sgd=False)

    def after_validation(self) -> None:
        """Divide the weights again, which the root of the model keeps whole after a forward pass."""
        cast(FSDPModule, self.module).reshard()

    def wrap(self) -> nn.Module:
        """Return the module, whose hooks exchange weights and gradients."""
        return self.module

    def state(self) -> dict[str, Any]:
        """As in :class:`Replica`, with :class:`OwnRows` for each tensor that the ranks hold together."""
        return cast(dict[str, Any], self._with_own_rows(super().state()))

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state of any number of ranks: each rank reads its rows."""
        own = self.module.state_dict()
        self.module.load_state_dict(
            {
                name: self._rows_like(own[name], value) if name in own else whole(value)
                for name, value in state["model"].items()
            }
        )
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        of_weights = {
            index: {
                name: self._rows_like(weights[index], value) if _has_rows_of(weights[index], value) else value
                for name, value in values.items()
            }
            for index, values in state["optimizer"]["state"].items()
        }
        self.optimizer.load_state_dict(state["optimizer"] | {"state": of_weights})
        for group in self.optimizer.param_groups:  # a checkpoint of one worker says fused=True, also for sgd
            group["fused"] = self.optimizer.defaults["fused"]
        self.scaler.load_state_dict(state["scaler"])

    def changed_by_update_alone(self) -> set[int]:
        """As in :class:`Replica`: addresses of this rank's rows."""
        tensors = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        for values in self.optimizer.state.values():
            tensors += [value for value in values.values() if isinstance(value, torch.Tensor)]
        return {_local(tensor).data_ptr() for tensor in tensors}

    def _with_own_rows(self, value: Any) -> Any:
        if isinstance(value, DTensor):
            return OwnRows(_local(value), self._rows(value).start, tuple(value.shape))
        if isinstance(value, dict):
            return {key: self._with_own_rows(part) for key, part in value.items()}
        return value

    def _rows_like(self, like: torch.Tensor, value: torch.Tensor | StoredRows) -> torch.Tensor:
        """`value` divided as `like` is, or the whole value if `like` is not divided."""
        if not isinstance(like, DTensor):
            return cast(torch.Tensor, whole(value))
        mine = self._rows(like)
        rows = (
            value.read(mine.start, len(mine))
            if isinstance(value, StoredRows)
            else value[mine.start : mine.stop]
        )
        return DTensor.from_local(
            rows.to(self.ranks.device),
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    def _rows(self, tensor: DTensor) -> range:
        """The rows of `tensor` that this rank holds: torch divides rows as `torch.chunk` does."""
        assert tuple(tensor.placements) == (Shard(0),)
        count = len(tensor)
        size = math.ceil(count / self.ranks.world_size)
        start = min(self.ranks.rank * size, count)
        rows = range(start, min(start + size, count))
        assert len(rows) == len(tensor.to_local())
        return rows


def units(module: nn.Module) -> Iterator[nn.Module]:
    """Parts of a model whose weights are gathered together, innermost first; the rest of the model is one more.

    A unit is an element of a `Sequential` or `ModuleList` with :data:`UNIT_PARAMETERS` parameters or more that are in
    no inner unit. A model that uses one parameter in two modules is a single unit.
    """
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    if len(names) == len(list(module.parameters())):
        yield from _units(module, set())


def _units(module: nn.Module, taken: set[nn.Parameter]) -> Iterator[nn.Module]:
    for child in module.children():
        yield from _units(child, taken)
        if not isinstance(module, nn.Sequential | nn.ModuleList):
            continue
        if isinstance(child, nn.ModuleList | nn.ModuleDict):  # has no forward pass
            continue
        left = {parameter for parameter in child.parameters() if parameter not in taken}
        if sum(parameter.numel() for parameter in left) >= UNIT_PARAMETERS:
            taken |= left
            yield child


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's rows of a tensor that the ranks hold together; other tensors unchanged."""
    return cast(DTensor, tensor.detach()).to_local() if isinstance(tensor, DTensor) else tensor


def _has_rows_of(weight: torch.Tensor, value: Any) -> bool:
    """Whether `value`, of the optimizer's state, has the shape of `weight`, as momentum has."""
    return isinstance(value, torch.Tensor | StoredRows) and tuple(value.shape) == tuple(weight.shape)
