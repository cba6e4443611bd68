"""Settings of LightGBM, and its terms for messages."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from training.settings.arguments import BoostingArguments
from training.settings.boosting import BoostingSettings
from training.settings.sections import NonNegativeFloat, TrainerWords


class LightGBMSettings(BoostingSettings):
    """LightGBM: number, size and sampling of the trees. Named as in LightGBM's documentation, except `rounds`."""

    WORDS: ClassVar[TrainerWords] = TrainerWords(
        step="round",
        epoch="round",
        computed="trees",
        kept="trees of the first {} rounds",
        section="How the trees are grown, of a recipe with trainer=LightGBM(...)",
        gain="LightGBM's importance by gain",
    )
    FORMATS: ClassVar[tuple[str, ...]] = ("lightgbm_text",)

    trainer: Literal["lightgbm"] = Field("lightgbm", description="The trainer that these settings are for")
    learning_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="Share of each tree that is added"
    )
    num_leaves: Annotated[int, Field(ge=2, le=131072)] = Field(31, description="Most leaves of a tree")
    max_depth: int = Field(-1, description="Greatest depth of a tree; 0 or less: no limit")
    min_data_in_leaf: Annotated[int, Field(ge=0)] = Field(20, description="Fewest rows in a leaf")
    min_gain_to_split: NonNegativeFloat = Field(
        0.0, description="Least reduction of the loss for which a leaf is split"
    )
    bagging_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Share of the rows for each tree"
    )
    feature_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Share of the columns for each tree"
    )
    lambda_l1: NonNegativeFloat = Field(0.0, description="L1 penalty on the leaves' values")
    lambda_l2: NonNegativeFloat = Field(0.0, description="L2 penalty on the leaves' values")
    max_bin: Annotated[int, Field(ge=2)] = Field(255, description="Bins of a number column's histogram")

    @property
    def can_use_gpus(self) -> bool:
        """See :class:`TrainerSettings`."""
        return False


class LightGBMArguments(BoostingArguments, total=False):
    """The fields of :class:`LightGBMSettings`, as keyword arguments."""

    num_leaves: int
    max_depth: int
    min_data_in_leaf: int
    min_gain_to_split: float
    bagging_fraction: float
    feature_fraction: float
    lambda_l1: float
    lambda_l2: float
    max_bin: int
