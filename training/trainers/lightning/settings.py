"""Settings of the trainer `lightning`, and its terms in messages and reports."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from training.settings.network import GradientSettings
from training.settings.sections import TrainerWords

if TYPE_CHECKING:
    from training.settings.schema import Settings


class LightningSettings(GradientSettings):
    """The trainer `lightning`: epochs, batch size, precision. The LightningModule sets optimizer and schedule."""

    WORDS: ClassVar[TrainerWords] = TrainerWords(
        step="step",
        epoch="epoch",
        computed="gradients",
        kept="weights of epoch {}",
        section="How the weights are trained, of a recipe with trainer=Lightning(...)",
    )
    FORMATS: ClassVar[tuple[str, ...]] = ("torch_export",)
    FORM: ClassVar[Mapping[str, str | None]] = {"learning_rate": None}

    trainer: Literal["lightning"] = Field("lightning", description="The trainer that these settings are for")

    def check(self, settings: "Settings") -> None:
        """Refuse feeds other than `memory`, and batches that do not divide among the workers."""
        if settings.data.feed != "memory":
            raise ValueError(
                "data.feed: trainer lightning supports the feed memory only; use data.feed=memory"
            )
        self.check_batch(max(1, settings.scaling.num_workers), 1)
