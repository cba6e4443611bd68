"""Settings of XGBoost, and its terms for messages and reports."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from training.settings.arguments import BoostingArguments
from training.settings.boosting import BoostingSettings
from training.settings.sections import NonNegativeFloat, TrainerWords


class XGBoostSettings(BoostingSettings):
    """XGBoost: number, size and sampling of the trees. Named as in XGBoost's documentation, except `rounds`."""

    WORDS: ClassVar[TrainerWords] = TrainerWords(
        step="round",
        epoch="round",
        computed="trees",
        kept="trees of the first {} rounds",
        section="How the trees are grown, of a recipe with trainer=XGBoost(...)",
        gain="XGBoost's total gain",
    )
    FORMATS: ClassVar[tuple[str, ...]] = ("xgboost_ubj",)

    trainer: Literal["xgboost"] = Field("xgboost", description="The trainer that these settings are for")
    learning_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        0.3, description="Share of each tree that is added"
    )
    max_depth: PositiveInt = Field(6, description="Greatest depth of a tree")
    min_child_weight: NonNegativeFloat = Field(1.0, description="Least sum of instance weights in a leaf")
    gamma: NonNegativeFloat = Field(0.0, description="Least reduction of the loss for which a leaf is split")
    subsample: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Share of the rows for each tree")
    colsample_bytree: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Share of the columns for each tree"
    )
    reg_lambda: NonNegativeFloat = Field(1.0, description="L2 penalty on the leaves' values")
    reg_alpha: NonNegativeFloat = Field(0.0, description="L1 penalty on the leaves' values")
    max_bin: Annotated[int, Field(ge=2)] = Field(256, description="Bins of a number column's histogram")

    @property
    def can_use_gpus(self) -> bool:
        """See :class:`TrainerSettings`: not if XGBoost was built without CUDA, as the package `xgboost-cpu` is."""
        import xgboost

        return bool(xgboost.build_info()["USE_CUDA"])


class XGBoostArguments(BoostingArguments, total=False):
    """The fields of :class:`XGBoostSettings`, as keyword arguments."""

    max_depth: int
    min_child_weight: float
    gamma: float
    subsample: float
    colsample_bytree: float
    reg_lambda: float
    reg_alpha: float
    max_bin: int
