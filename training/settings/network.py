"""Settings that trainers of neural networks share."""

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from training.settings.sections import (
    THRESHOLD,
    NonNegativeFloat,
    PositiveFloat,
    Share,
    Threshold,
    TrainerSettings,
    WeighingSettings,
)


class NetworkSettings(TrainerSettings):
    """The section `training` of every trainer of networks: epochs, batch size, augmentation, selection, determinism."""

    COMPUTES_METRICS: ClassVar[bool] = True

    epochs: PositiveInt = Field(5, description="Passes over the training rows")
    max_steps: PositiveInt | None = Field(None, description="End after this many optimizer steps, for trials")
    global_batch_size: PositiveInt = Field(128, description="Rows of one optimizer step, over all workers")
    augment: bool = Field(True, description="Apply the recipe's augmentation to training rows")
    select: Literal["best", "last"] = Field(
        "best", description="Epoch whose weights are kept, by validation loss"
    )
    deterministic: Literal["off", "warn", "refuse"] = Field(
        "warn", description="Use deterministic kernels; where one is missing, warn and continue, or refuse"
    )
    threshold: Threshold = Field(None, description=THRESHOLD)

    @property
    def total_epochs(self) -> int:
        """See :class:`TrainerSettings`."""
        return self.epochs

    @property
    def step_limit(self) -> int | None:
        """See :class:`TrainerSettings`."""
        return self.max_steps

    @property
    def rows_of_step(self) -> int | None:
        """See :class:`TrainerSettings`."""
        return self.global_batch_size

    @property
    def keeps_best(self) -> bool:
        """See :class:`TrainerSettings`."""
        return self.select == "best"

    def check_batch(self, workers: int, passes: int) -> None:
        """Raise ValueError if a step's rows do not divide among the workers, or a worker's rows among its passes."""
        unit, batch = workers * passes, self.global_batch_size
        if batch % unit:
            below, above = batch - batch % unit, batch - batch % unit + unit
            nearest = above if not below or above - batch < batch - below else below
            steps = f" x {passes} accumulation steps" if passes > 1 else ""
            raise ValueError(
                f"training.global_batch_size: {batch} rows do not divide among {workers} workers{steps}; the nearest "
                f"that does is {nearest}"
            )


class PrecisionSettings(NetworkSettings):
    """The section of a trainer that sets the precision; a recipe's own loop sets it itself."""

    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Arithmetic of the forward and backward pass; float16 uses loss scaling and needs CUDA",
    )

    @property
    def uses_float16(self) -> bool:
        """See :class:`TrainerSettings`."""
        return self.precision == "float16"


class GradientSettings(PrecisionSettings):
    """The section of a trainer that also clips gradients, with Evergreen's name for the setting."""

    clip_norm: PositiveFloat | None = Field(None, description="Scale gradients down to this total norm")


class OwnLoopSettings(WeighingSettings, GradientSettings):
    """The section of a trainer that uses Evergreen's own loop: optimizer, schedule, passes of a step."""

    accumulation_steps: PositiveInt = Field(
        1, description="Split each worker's share of a step into this many passes"
    )
    optimizer: Literal["adamw", "adam", "sgd"] = Field("adamw", description="Update rule")
    learning_rate: PositiveFloat = Field(1e-3, description="Peak learning rate")
    weight_decay: NonNegativeFloat = Field(
        1e-2, description="Decoupled weight decay (adamw) or L2 penalty (adam, sgd)"
    )
    momentum: Share = Field(0.9, description="Momentum of sgd")
    schedule: Literal["constant", "cosine", "one_cycle", "step"] = Field(
        "cosine", description="Learning rate over time"
    )
    warmup_share: Share = Field(
        0.05, description="Share of all steps over which the learning rate rises to its peak"
    )
    label_smoothing: Share = Field(0.0, description="Probability spread over the other classes in the loss")

    @property
    def passes_of_step(self) -> int:
        """See :class:`TrainerSettings`."""
        return self.accumulation_steps
