"""Settings of the trainer `keras`, and its terms in messages and reports."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from training.settings.network import OwnLoopSettings
from training.settings.sections import TrainerWords

if TYPE_CHECKING:
    from training.settings.schema import Settings


class KerasSettings(OwnLoopSettings):
    """The trainer `keras`: epochs, batch size, optimizer, schedule, precision and clipping."""

    WORDS: ClassVar[TrainerWords] = TrainerWords(
        step="step",
        epoch="epoch",
        computed="gradients",
        kept="weights of epoch {}",
        section="How the weights are trained, of a recipe with trainer=Keras(...)",
    )
    FORMATS: ClassVar[tuple[str, ...]] = ("torch_export",)

    trainer: Literal["keras"] = Field("keras", description="The trainer that these settings are for")

    def check(self, settings: "Settings") -> None:
        """Refuse feeds other than `memory`, and batches that do not divide among workers and passes."""
        if settings.data.feed != "memory":
            raise ValueError("data.feed: trainer keras supports the feed memory only; use data.feed=memory")
        self.check_batch(max(1, settings.scaling.num_workers), self.accumulation_steps)
