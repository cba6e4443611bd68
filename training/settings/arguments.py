"""The settings of trainers as keyword arguments of the classes that recipes write, for type checkers and editors.

Each class here has the names and types of a section of settings; a test compares them. Values and limits are checked by
the section.
"""

from collections.abc import Mapping
from typing import Literal, TypedDict

ThresholdArgument = float | Literal["f1", "balanced_accuracy"] | Mapping[str, float] | None
ClassWeightsArgument = Literal["balanced"] | Mapping[str, float] | None


class NetworkArguments(TypedDict, total=False):
    """The fields of :class:`training.settings.network.NetworkSettings`."""

    epochs: int
    max_steps: int | None
    global_batch_size: int
    augment: bool
    select: Literal["best", "last"]
    deterministic: Literal["off", "warn", "refuse"]
    threshold: ThresholdArgument


class PrecisionArguments(NetworkArguments, total=False):
    """The fields of :class:`training.settings.network.PrecisionSettings`."""

    precision: Literal["float32", "bfloat16", "float16"]


class GradientArguments(PrecisionArguments, total=False):
    """The fields of :class:`training.settings.network.GradientSettings`."""

    clip_norm: float | None


class OwnLoopArguments(GradientArguments, total=False):
    """The fields of :class:`training.settings.network.OwnLoopSettings`."""

    accumulation_steps: int
    optimizer: Literal["adamw", "adam", "sgd"]
    learning_rate: float
    weight_decay: float
    momentum: float
    schedule: Literal["constant", "cosine", "one_cycle", "step"]
    warmup_share: float
    label_smoothing: float
    class_weights: ClassWeightsArgument


class BoostingArguments(TypedDict, total=False):
    """The fields of :class:`training.settings.boosting.BoostingSettings`."""

    rounds: int
    select: Literal["best", "last"]
    early_stopping_rounds: int | None
    learning_rate: float
    threshold: ThresholdArgument
    class_weights: ClassWeightsArgument
