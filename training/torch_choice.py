"""The trainer `torch` in a recipe; the default of recipes that give `build_model` alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from training.errors import SettingError
from training.settings.arguments import OwnLoopArguments
from training.settings.overrides import resolve, section_of
from training.settings.schema import Settings, section_of_trainer
from training.trainer_arguments import check_function

if TYPE_CHECKING:
    from torch import nn

BuildModel = Callable[[Any, int], "nn.Module"]


class TorchArguments(OwnLoopArguments, total=False):
    """The other fields of the section `training` of the trainer `torch`, as keyword arguments."""

    init_from: str | Path | None
    init_head: Literal["keep", "new"]
    freeze: Sequence[str]
    virtual_shards: int | None
    zero_stage: int
    compile: bool
    channels_last: bool


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
    divides what `training.zero_stage` says (`deepspeed`). The other arguments are settings of the section `training`,
    as in `Torch(build_model, epochs=10, learning_rate=1e-3)`.

    Raises :class:`SettingError` if `build_model` is no function, and for an unknown or invalid setting.
    """

    def __init__(
        self,
        build_model: BuildModel,
        strategy: Literal["ddp", "fsdp", "deepspeed"] | None = None,
        **settings: Unpack[TorchArguments],
    ):
        check_function("Torch", "build_model", build_model)
        self.build_model = build_model
        self.settings: dict[str, Any] = {**settings} | (
            {"strategy": strategy} if strategy is not None else {}
        )
        section_of(section_of_trainer("torch"), self.settings, "Torch")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Torch) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.build_model)

    def adapted(self, settings: Settings) -> Settings:
        """The recipe's settings with the section `training` of this trainer.

        Raises :class:`SettingError` for settings of another trainer, and for a setting that is given here, too, with
        another value.
        """
        if settings.trainer != "torch":
            raise SettingError(
                f"the recipe's settings have a training section of {settings.trainer}, not of torch"
            )
        if not self.settings:
            return settings
        adapted_settings = resolve(settings, {"training": self.settings})
        defaults = type(settings.training)()
        for name in sorted(self.settings):
            given = getattr(settings.training, name)
            if given not in (getattr(defaults, name), getattr(adapted_settings.training, name)):
                raise SettingError(
                    f"settings: training.{name} has another value in Torch(...); give the setting once"
                )
        return adapted_settings
