"""Settings of the PyTorch loop, and the words for its work."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, PositiveInt

from training.settings.sections import NonNegativeFloat, PositiveFloat, Share, TrainerSettings, TrainerWords

if TYPE_CHECKING:
    from training.settings.schema import Settings


class TrainingSettings(TrainerSettings):
    """The PyTorch loop: epochs, batch size, optimizer, schedule, precision and determinism."""

    WORDS: ClassVar[TrainerWords] = TrainerWords(
        step="step",
        epoch="epoch",
        computed="gradients",
        kept="weights of epoch {}",
        section="How the weights are trained, of a recipe with build_model or trainer=Torch(...)",
    )
    FORMATS: ClassVar[tuple[str, ...]] = ("torch_export",)

    epochs: PositiveInt = Field(5, description="Passes over the training rows")
    max_steps: PositiveInt | None = Field(None, description="End after this many optimizer steps, for trials")
    global_batch_size: PositiveInt = Field(128, description="Rows of one optimizer step, over all workers")
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
    clip_norm: PositiveFloat | None = Field(None, description="Scale gradients down to this total norm")
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Arithmetic of the forward and backward pass; float16 uses loss scaling and needs CUDA",
    )
    augment: bool = Field(True, description="Apply the recipe's augmentation to training rows")
    select: Literal["best", "last"] = Field(
        "best", description="Epoch whose weights are kept, by validation loss"
    )
    deterministic: Literal["off", "warn", "refuse"] = Field(
        "warn", description="Use deterministic kernels; where one is missing, warn and continue, or refuse"
    )
    virtual_shards: PositiveInt | None = Field(
        None,
        description="Compute each step in this many fixed shards and add their gradients in a fixed order: the same "
        "weights to the last bit for any number of workers up to it. Slower; needs data.feed=memory",
    )
    compile: bool = Field(False, description="Compile the model with torch.compile")
    channels_last: bool = Field(False, description="Keep images channels-last in memory")

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
    def passes_of_step(self) -> int:
        """See :class:`TrainerSettings`."""
        return self.accumulation_steps

    @property
    def uses_float16(self) -> bool:
        """See :class:`TrainerSettings`."""
        return self.precision == "float16"

    @property
    def keeps_best(self) -> bool:
        """See :class:`TrainerSettings`."""
        return self.select == "best"

    def check(self, settings: "Settings") -> None:
        """Refuse batches that do not divide among the workers, and shards that workers can't share."""
        workers = max(1, settings.scaling.num_workers)
        _check_batch(self.global_batch_size, workers, self.accumulation_steps)
        if self.virtual_shards is not None:
            _check_shards(self.virtual_shards, settings, self)


def _check_shards(shards: int, settings: "Settings", training: TrainingSettings) -> None:
    if settings.data.feed != "memory":
        raise ValueError(
            "training.virtual_shards: only data.feed=memory gives every number of workers the same rows"
        )
    if settings.scaling.num_workers > shards:
        raise ValueError(
            f"training.virtual_shards: {shards} shards leave some of {settings.scaling.num_workers} workers without "
            "any; use at least as many shards as scaling.num_workers"
        )
    if training.global_batch_size < 2 * shards:
        raise ValueError(
            f"training.virtual_shards: {shards} shards of a global batch of "
            f"{training.global_batch_size} have less than 2 rows; use fewer shards or a larger batch"
        )


def _check_batch(batch: int, workers: int, accumulation: int) -> None:
    unit = workers * accumulation
    if batch % unit:
        below, above = batch - batch % unit, batch - batch % unit + unit
        nearest = above if not below or above - batch < batch - below else below
        raise ValueError(
            f"training.global_batch_size: {batch} rows do not divide among {workers} workers x {accumulation} "
            f"accumulation steps; the nearest that does is {nearest}"
        )
