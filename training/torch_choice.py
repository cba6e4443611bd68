"""The trainer `torch` in a recipe; the default of recipes that give `build_model` alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from training.errors import SettingError
from training.settings.overrides import resolve
from training.settings.schema import Settings
from training.trainer_arguments import check_function

if TYPE_CHECKING:
    from torch import nn

BuildModel = Callable[[Any, int], "nn.Module"]


@dataclass(frozen=True)
class Torch:
    """The trainer `torch`: Evergreen's own loop over a PyTorch module.

    `build_model(shape, outputs)` returns a new module. For images, `shape` is (channels, height, width), and the module
    maps float images (rows, channels, height, width), normalised per channel, to (rows, outputs). For a table, `shape`
    is (features,), and the module maps float rows (rows, features) to (rows, outputs): numbers are scaled to mean 0 and
    standard deviation 1, and each category is a feature of its own. `outputs` is the number of classes, whose logits
    the module gives; or 1 for a regression, whose target is scaled as the numbers are.

    For text, `shape` is a :class:`TextShape` (tokens,), which has the numbers `vocabulary` and `padding` for an
    embedding, and the module maps int64 token ids (rows, tokens) to (rows, outputs).

    `strategy` sets `training.strategy`: each worker holds the whole model (`ddp`), or its share (`fsdp`), or DeepSpeed
    divides what `training.zero_stage` says (`deepspeed`).

    Raises :class:`SettingError` if `build_model` is no function.
    """

    build_model: BuildModel
    strategy: Literal["ddp", "fsdp", "deepspeed"] | None = None

    def __post_init__(self) -> None:
        check_function("Torch", "build_model", self.build_model)

    def adapted(self, settings: Settings) -> Settings:
        """The recipe's settings with the section `training` of this trainer.

        Raises :class:`SettingError` for settings of another trainer, and for an unknown or unsupported strategy.
        """
        if settings.trainer != "torch":
            raise SettingError(
                f"the recipe's settings have a training section of {settings.trainer}, not of torch"
            )
        return resolve(settings, {"training": {"strategy": self.strategy}}) if self.strategy else settings
