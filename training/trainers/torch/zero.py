"""DeepSpeed's ZeRO (`training.strategy=deepspeed`): what the ranks divide depends on the stage, `training.zero_stage`.

Stage 0 divides nothing, stage 1 the optimizer's state, stage 2 also the gradients, stage 3 also the weights. The method
is described by S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020.

DeepSpeed's own checkpoints are pickles, so they are neither written nor read. A checkpoint has the tensors of a
training with DDP, by the same names. From stage 1 on, each rank writes the numbers that its part of the optimizer has.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch  # noqa: TID253 - imported by processes that train, never by ones that plan or list
from torch import nn  # noqa: TID253

from training.checkpoints.parts import OwnRows, StoredRows, whole
from training.errors import SettingError
from training.trainers.torch.collective import CollectiveReplica
from training.trainers.torch.deepspeed_engine import start_engine
from training.trainers.torch.own_settings import own_settings


class ZeroReplica(CollectiveReplica):
    """A :class:`CollectiveReplica` whose steps DeepSpeed's engine runs."""

    def shard(self) -> None:
        """Check the weights. Raises :class:`SettingError` for a scalar, and for weights that are not float32."""
        for name, weight in self.module.named_parameters():
            if not weight.dim():
                raise SettingError(
                    f"training.strategy: deepspeed divides lists of numbers, and {name} is a single number; give it "
                    "the shape (1,), or set training.strategy=ddp"
                )
            if weight.dtype != torch.float32:
                raise SettingError(
                    f"training.strategy: deepspeed divides float32 weights, and {name} is {weight.dtype}; build the "
                    "model in float32, or set training.strategy=ddp"
                )
        self.stage = own_settings(self.settings).zero_stage
        self.sharded = self.stage > 0
        self._shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters()}

    def wrap(self) -> nn.Module:
        """The engine, which forward passes call."""
        self.engine = start_engine(
            _InPrecision(self.module, self._autocast),
            self.optimizer,
            self.stage,
            self.options.clip_norm,
            self.ranks,
        )
        if self.sharded:
            self._forward_keeps_weights = True  # a pass changes copies of the optimizer's weights at most
        return self.engine  # type: ignore[no-any-return]

    def _rehearse(self) -> None:
        """Nothing: DeepSpeed adds gradients in the same order in each step."""

    def _output(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.model(self.inputs.plain(inputs))
        return output

    def _sync_only_if(self, last: bool) -> AbstractContextManager[None]:
        self.engine.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def _backward(self, loss: torch.Tensor) -> None:
        self.engine.backward(loss, scale_wrt_gas=False)

    def update(self) -> None:
        """As in :class:`Replica`: the engine clips the gradients, applies and clears them."""
        self.before_update()
        self.engine.step()

    def state(self) -> dict[str, Any]:
        """As in :class:`Replica`, with :class:`OwnRows` for each tensor that the ranks hold together."""
        if not self.sharded:
            return super().state()
        weights = {name: self._own(name, parameter) for name, parameter in self._parameters()}
        states = {
            index: self._own_state(name, parameter)
            for index, (name, parameter) in enumerate(self.module.named_parameters())
            if parameter.requires_grad
        }
        return {
            "model": self.module.state_dict() | weights,
            "optimizer": {
                "state": {index: values for index, values in states.items() if values},
                "param_groups": [self._settings_of_group() | {"params": list(range(self._count()))}],
            },
            "scaler": self.scaler.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state of any number of ranks: each rank reads its part of the optimizer's state."""
        if not self.sharded:
            super().load(state)
            return
        model = state["model"]
        for name, weight in self.module.named_parameters():
            self._set_weight(weight, model[name])
        rest = {name: whole(value) for name, value in model.items() if name not in self._shapes}
        self.module.load_state_dict(rest, strict=False)
        self.engine.optimizer.refresh_fp32_params()
        self._load_optimizer(state["optimizer"]["state"])

    def changed_by_update_alone(self) -> set[int]:
        """As in :class:`Replica`: addresses of this rank's part of the optimizer's weights and state."""
        if not self.sharded:
            return super().changed_by_update_alone()
        state = self.state()
        entries = [*state["model"].values()]
        for values in state["optimizer"]["state"].values():
            entries += values.values()
        return {entry.rows.data_ptr() for entry in entries if isinstance(entry, OwnRows)}

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All weights by name; a weight that two modules share has two names."""
        return self.module.named_parameters(remove_duplicate=False)

    def _count(self) -> int:
        return len(list(self.module.parameters()))

    def _settings_of_group(self) -> dict[str, Any]:
        group = self.optimizer.param_groups[0]
        return {name: group[name] for name in self.optimizer.defaults}

    def _set_weight(self, weight: nn.Parameter, value: torch.Tensor | StoredRows) -> None:
        """Set the whole weight: on all ranks, or in stage 3 on the first rank, which sends the others their parts."""
        import deepspeed

        if self.stage < 3:
            weight.data.copy_(whole(value))
            return
        with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
            if self.ranks.is_first:
                weight.data.copy_(whole(value))

    def _load_optimizer(self, stored: dict[int, dict[str, Any]]) -> None:
        for flat in self._flat_weights():
            self.optimizer.state[flat] = {}
        weights = dict(enumerate(self.module.named_parameters()))
        for index, values in stored.items():
            name, weight = weights[index]
            for kind, value in values.items():
                if not _has_numbers_of(self._shapes[name], value):
                    for flat in self._flat_weights():
                        self.optimizer.state[flat][kind] = _copied(value, flat.device)
                    continue
                for flat in self._flat_weights():
                    self.optimizer.state[flat].setdefault(kind, torch.zeros_like(flat, requires_grad=False))
                start, mine = self._part(weight, kind)
                mine.copy_(_numbers(value, start, len(mine)))

    def _flat_weights(self) -> list[torch.Tensor]:
        """This rank's part of the trained weights, as the one-dimensional tensors that the optimizer updates."""
        zero = self.engine.optimizer
        flat = zero.fp32_partitioned_groups_flat if self.stage == 3 else zero.single_partition_of_fp32_groups
        return list(flat)

    def _own(self, name: str, weight: nn.Parameter, kind: str | None = None) -> OwnRows | torch.Tensor:
        """This rank's part of a weight, or of its optimizer state; the whole weight if all ranks hold it."""
        if not weight.requires_grad and self.stage < 3:
            return weight.detach()
        start, numbers = self._part(weight, kind)
        shape = self._shapes[name]
        return OwnRows(numbers.detach(), start, (_size(shape),), shape)

    def _own_state(self, name: str, weight: nn.Parameter) -> dict[str, Any]:
        flat = self._flat_weights()[0]
        return {
            kind: self._own(name, weight, kind) if _is_like(value, flat) else value
            for kind, value in self.optimizer.state.get(flat, {}).items()
        }

    def _part(self, weight: nn.Parameter, kind: str | None) -> tuple[int, torch.Tensor]:
        """Start and values of this rank's slice of a flattened weight, or of the weight's optimizer state.

        The values are a view: changing them changes what the optimizer holds.
        """
        return self._part_of_gathered(weight, kind) if self.stage < 3 else self._part_of_divided(weight, kind)

    def _part_of_gathered(self, weight: Any, kind: str | None) -> tuple[int, torch.Tensor]:
        """Stages 1 and 2: the ranks divide the sequence of all weights, so a weight may be on several ranks."""
        flats, mapping = self._flat_weights(), weight._hp_mapping
        if mapping is None:  # all of it is on other ranks
            return weight.numel(), flats[0].detach()[:0]
        flat = flats[mapping.param_group_index]
        held = flat if kind is None else self.optimizer.state[flat][kind]
        there, here = mapping.lp_fragment_address, mapping.hp_fragment_address
        return there.start, held.detach()[here.start : here.start + here.numel]

    def _part_of_divided(self, weight: Any, kind: str | None) -> tuple[int, torch.Tensor]:
        """Stage 3: the ranks divide each weight into equal parts; the last parts are padded."""
        from deepspeed.utils import safe_get_local_fp32_param, safe_get_local_optimizer_state

        if not weight.requires_grad:
            held = weight.ds_tensor
        elif kind is None:
            held = safe_get_local_fp32_param(weight)
        else:
            held = safe_get_local_optimizer_state(weight, kind)
        start = min(self.ranks.rank * len(held), weight.ds_numel)
        return start, held.detach()[: weight.ds_numel - start]


class _InPrecision(nn.Module):
    """A model whose forward pass runs in the precision of the training; the engine switches torch.autocast off."""

    def __init__(self, module: nn.Module, autocast: Any):
        super().__init__()
        self.module, self.autocast = module, autocast

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with self.autocast():
            output: torch.Tensor = self.module(inputs)
        return output


def _size(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _is_like(value: Any, flat: torch.Tensor) -> bool:
    """Whether `value`, of the optimizer's state, has the shape of `flat`, as momentum has."""
    return isinstance(value, torch.Tensor) and value.shape == flat.shape


def _has_numbers_of(shape: tuple[int, ...], value: Any) -> bool:
    """Whether `value`, of a stored optimizer state, has the shape of its weight, `shape`."""
    if isinstance(value, StoredRows):
        return True
    return isinstance(value, torch.Tensor) and tuple(value.shape) == shape


def _copied(value: Any, device: torch.device) -> Any:
    return value.to(device, copy=True) if torch.is_tensor(value) else value


def _numbers(value: torch.Tensor | StoredRows, start: int, count: int) -> torch.Tensor:
    """`count` numbers of the flattened tensor, from `start` on."""
    if isinstance(value, StoredRows):
        return value.read(start, count)
    return value.flatten()[start : start + count]
