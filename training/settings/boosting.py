"""Settings that all trainers of boosted trees have."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, PositiveInt

from training.settings.sections import THRESHOLD, Threshold, WeighingSettings

if TYPE_CHECKING:
    from training.settings.schema import Settings


class BoostingSettings(WeighingSettings):
    """The section `training` of a trainer of boosted trees; a field `trainer` of the subclass names the trainer."""

    FORM: ClassVar[Mapping[str, str | None]] = {"epochs": "training.rounds", "batch_size": None}

    rounds: PositiveInt = Field(100, description="Boosting rounds; each adds a tree, or one a class")
    select: Literal["best", "last"] = Field(
        "best", description="Number of rounds that are kept: the best by validation loss, or all"
    )
    early_stopping_rounds: PositiveInt | None = Field(
        None, description="Rounds without a lower validation loss after which training ends; none: never"
    )

    threshold: Threshold = Field(None, description=THRESHOLD)

    @property
    def total_epochs(self) -> int:
        """A boosting round counts as an epoch."""
        return self.rounds

    @property
    def patience(self) -> int | None:
        """A boosting round counts as an epoch."""
        return self.early_stopping_rounds

    @property
    def keeps_best(self) -> bool:
        """See :class:`TrainerSettings`."""
        return self.select == "best"

    def check(self, settings: "Settings") -> None:
        """Refuse the feed of a DataLoader, and a number of workers that may change."""
        if settings.data.feed == "loader":
            raise ValueError(
                f"data.feed: trainer {settings.trainer} uses all rows in each round, and no DataLoader; use "
                "data.feed=memory or stream"
            )
        if settings.scaling.min_workers is not None:
            raise ValueError(
                f"scaling.min_workers: trainer {settings.trainer} needs a fixed number of workers"
            )
