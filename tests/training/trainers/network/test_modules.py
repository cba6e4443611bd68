"""A model whose state no file of weights can hold is refused before it trains."""

import pytest
import torch
from torch import nn

from evergreen import Digits, Recipe
from training.errors import TrainingError
from training.trainers.network.modules import build_module, check_same_trained, trained_weights


class Extra(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        del state


def recipe_of(layer: nn.Module) -> Recipe:
    def build_model(_: tuple[int, ...], __: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), layer)

    return Recipe("stateful", "for a test", Digits(), build_model=build_model)


def test_state_that_is_no_tensor_is_refused() -> None:
    said = "recipe stateful: the state of its model has 1._extra_state, of the type dict.*register_buffer"
    with pytest.raises(TrainingError, match=said):
        build_module(recipe_of(Extra(64, 10)), (1, 8, 8), 10)


@pytest.mark.parametrize("kind", [torch.complex128, torch.complex64, torch.float64, torch.int16, torch.bool])
def test_a_tensor_is_refused_if_safetensors_can_not_hold_it(kind: torch.dtype) -> None:
    layer = nn.Linear(64, 10)
    layer.register_buffer("phases", torch.zeros(3, dtype=kind))
    recipe = recipe_of(layer)
    if kind is not torch.complex128:
        build_module(recipe, (1, 8, 8), 10)
        return
    with pytest.raises(TrainingError, match=r"has 1\.phases, a tensor of torch\.complex128.*complex64"):
        build_module(recipe, (1, 8, 8), 10)


class Initialised(nn.Linear):
    """Takes its bias from its first inputs, as layers with data-dependent initialisation do."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.register_buffer("initialised", torch.tensor(False))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.initialised.fill_(True)
        self.bias.data.fill_(7.0)
        return super().forward(inputs)


def test_the_check_of_a_model_changes_neither_state_nor_modes() -> None:
    module = build_module(recipe_of(nn.Sequential(nn.Dropout(), Initialised()).eval()), (1, 8, 8), 10)
    layer = module.get_submodule("1.1")
    assert isinstance(layer, Initialised)
    assert not bool(layer.initialised)
    assert not (layer.bias == 7.0).any()
    assert (module.training, module.get_submodule("1").training, layer.training) == (True, False, False)


def test_a_lazy_layer_stays_initialised() -> None:
    module = build_module(recipe_of(nn.LazyLinear(10)), (1, 8, 8), 10)
    assert module.get_submodule("1").weight.shape == (10, 64)


def test_weights_that_are_frozen_meanwhile_are_named() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = trained_weights(module)
    check_same_trained(module, before)
    module[0].requires_grad_(False)
    with pytest.raises(TrainingError, match=r"froze or unfroze 0\.bias"):
        check_same_trained(module, before)
