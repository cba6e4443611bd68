"""Settings of trainers that can start from given weights."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field

from training.initial_weights import checked_reference, is_path
from training.settings.network import NetworkSettings
from training.settings.sections import listed
from training.storage.given_paths import expanded


def _parts(value: object) -> object:
    """Names of parts in one order, each once: another order freezes the same parts. `--set` reads `0` as a number."""
    names = [] if value is None else listed(str(value) if isinstance(value, int) else value)
    if isinstance(names, float):
        raise ValueError('the command line reads this as a number; write a list, as training.freeze=["1.10"]')
    return sorted({str(name) for name in names}) if isinstance(names, list | tuple) else names


class FineTuningSettings(NetworkSettings):
    """The section of a trainer that can start from given weights, and freeze parts of them."""

    NOT_IN_KEY: ClassVar[tuple[str, ...]] = ("init_from",)  # the digest of these weights is in the run key

    init_from: Annotated[str, BeforeValidator(checked_reference)] | None = Field(
        None,
        description="Start from the weights of the model's champion (champion), of a registered version (version:N), "
        "of a .safetensors file or of a folder with model.safetensors, relative to the recipe if the recipe names it, "
        "or from published weights (hub:OWNER/NAME, torchvision:ResNet18_Weights.DEFAULT); none: from new weights",
    )
    init_head: Literal["keep", "new"] = Field(
        "keep",
        description="Tensors of init_from that were made for another number of outputs: refuse them (keep), or start "
        "these with new weights (new)",
    )
    freeze: Annotated[tuple[str, ...], BeforeValidator(_parts)] = Field(
        (),
        description="Parts of init_from that stay as they are, by the names of modules or parameters, such as "
        "conv1,layer1; their modules stay in evaluation mode. Without a champion to start from, all parts are trained",
    )

    @property
    def initial_weights(self) -> str | None:
        """See :class:`TrainerSettings`."""
        return self.init_from

    def beside(self, folder: Path) -> Self:
        """See :class:`TrainerSettings`."""
        if self.init_from is None or not is_path(self.init_from):
            return self
        return self.model_copy(
            update={"init_from": str(folder / expanded(self.init_from, "training.init_from"))}
        )

    def check_freeze(self) -> None:
        """Raise ValueError if new weights would be frozen."""
        if self.freeze and self.init_from is None:
            raise ValueError(
                "training.freeze: new weights are not frozen; set training.init_from, or training.freeze=none"
            )
