"""Settings of the trainer `accelerate`, and its terms in messages and reports."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from training.settings.arguments import NetworkArguments
from training.settings.network import NetworkSettings
from training.settings.sections import TrainerWords

if TYPE_CHECKING:
    from training.settings.schema import Settings


class AccelerateSettings(NetworkSettings):
    """The trainer `accelerate`: epochs and batch size. The loop sets optimizer, schedule, precision and clipping."""

    WORDS: ClassVar[TrainerWords] = TrainerWords(
        step="step",
        epoch="epoch",
        computed="gradients",
        kept="weights of epoch {}",
        section="How the weights are trained, of a recipe with trainer=Accelerate(...)",
    )
    FORMATS: ClassVar[tuple[str, ...]] = ("torch_export",)
    FORM: ClassVar[Mapping[str, str | None]] = {"learning_rate": None}

    trainer: Literal["accelerate"] = Field(
        "accelerate", description="The trainer that these settings are for"
    )

    balance_classes: bool = Field(
        False,
        description="Take the same number of rows of each class in every step; repeat rows of small classes",
    )

    @property
    def balances_classes(self) -> bool:
        """See :class:`training.settings.sections.TrainerSettings`."""
        return self.balance_classes

    def check(self, settings: "Settings") -> None:
        """Refuse feeds other than `memory`, and batches that do not divide among the workers."""
        if settings.data.feed != "memory":
            raise ValueError(
                "data.feed: trainer accelerate supports the feed memory only; use data.feed=memory"
            )
        self.check_batch(max(1, settings.scaling.num_workers), 1)


class AccelerateArguments(NetworkArguments, total=False):
    """The fields of :class:`AccelerateSettings`, as keyword arguments."""

    balance_classes: bool
