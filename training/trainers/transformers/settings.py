"""Settings of the trainer `transformers`, named as in TrainingArguments, and its terms in messages and reports."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, PositiveInt

from training.settings.arguments import PrecisionArguments
from training.settings.fine_tuning import FineTuningSettings
from training.settings.network import PrecisionSettings
from training.settings.sections import NonNegativeFloat, PositiveFloat, Share, TrainerWords

if TYPE_CHECKING:
    from training.settings.schema import Settings


class TransformersSettings(PrecisionSettings, FineTuningSettings):
    """The trainer `transformers`: epochs, batch size, optimizer, schedule, precision and clipping."""

    WORDS: ClassVar[TrainerWords] = TrainerWords(
        step="step",
        epoch="epoch",
        computed="gradients",
        kept="weights of epoch {}",
        section="How the weights are trained, of a recipe with trainer=Transformers(...)",
    )
    FORMATS: ClassVar[tuple[str, ...]] = ("torch_export",)

    trainer: Literal["transformers"] = Field(
        "transformers", description="The trainer that these settings are for"
    )
    learning_rate: PositiveFloat = Field(5e-5, description="Peak learning rate")
    lr_scheduler_type: Literal["linear", "cosine", "polynomial", "constant_with_warmup", "inverse_sqrt"] = (
        Field("linear", description="Learning rate over time, after the warm-up")
    )
    warmup_steps: NonNegativeFloat = Field(
        0.0,
        description="Steps over which the learning rate rises to its peak; below 1: their share of all steps",
    )
    optim: Literal["adamw_torch_fused", "adamw_torch", "adafactor", "sgd"] = Field(
        "adamw_torch_fused", description="Update rule"
    )
    weight_decay: NonNegativeFloat = Field(
        0.0, description="Decay of all weights but biases and those of normalisation layers"
    )
    adam_beta1: Share = Field(0.9, description="Decay of the first moment, of AdamW")
    adam_beta2: Share = Field(0.999, description="Decay of the second moment, of AdamW")
    adam_epsilon: PositiveFloat = Field(1e-8, description="Term that prevents a division by zero, of AdamW")
    max_grad_norm: NonNegativeFloat = Field(
        1.0, description="Scale gradients down to this total norm; 0: never"
    )
    gradient_accumulation_steps: PositiveInt = Field(
        1, description="Split each worker's share of a step into this many passes"
    )
    label_smoothing_factor: Share = Field(
        0.0, description="Probability spread over the other classes in the loss"
    )

    @property
    def passes_of_step(self) -> int:
        """See :class:`TrainerSettings`."""
        return self.gradient_accumulation_steps

    @property
    def fixed_passes(self) -> int:
        """See :class:`TrainerSettings`: the Trainer of Transformers counts the passes of a step."""
        return self.gradient_accumulation_steps

    def check(self, settings: "Settings") -> None:
        """Refuse other feeds than `memory`, batches that workers and passes can't share, and frozen new weights."""
        if settings.data.feed != "memory":
            raise ValueError(
                "data.feed: trainer transformers supports the feed memory only; use data.feed=memory"
            )
        self.check_freeze()
        self.check_batch(max(1, settings.scaling.num_workers), self.gradient_accumulation_steps)


class TransformersArguments(PrecisionArguments, total=False):
    """The fields of :class:`TransformersSettings`, as keyword arguments."""

    init_from: str | Path | None
    init_head: Literal["keep", "new"]
    freeze: Sequence[str]
    learning_rate: float
    lr_scheduler_type: Literal["linear", "cosine", "polynomial", "constant_with_warmup", "inverse_sqrt"]
    warmup_steps: float
    optim: Literal["adamw_torch_fused", "adamw_torch", "adafactor", "sgd"]
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    max_grad_norm: float
    gradient_accumulation_steps: int
    label_smoothing_factor: float
