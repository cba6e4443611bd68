"""Settings of the PyTorch loop, and its terms for messages."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from training.settings.fine_tuning import FineTuningSettings
from training.settings.network import OwnLoopSettings
from training.settings.sections import TrainerWords

if TYPE_CHECKING:
    from training.settings.schema import Settings


class TrainingSettings(OwnLoopSettings, FineTuningSettings):
    """The PyTorch loop: epochs, batch size, optimizer, schedule, precision and determinism."""

    WORDS: ClassVar[TrainerWords] = TrainerWords(
        step="step",
        epoch="epoch",
        computed="gradients",
        kept="weights of epoch {}",
        section="How the weights are trained, of a recipe with build_model or trainer=Torch(...)",
    )
    FORMATS: ClassVar[tuple[str, ...]] = ("torch_export",)
    READS_DATASET: ClassVar[bool] = True

    virtual_shards: PositiveInt | None = Field(
        None,
        description="Compute each step in this many fixed shards and add their gradients in a fixed order: the same "
        "weights to the last bit for any number of workers up to this number. Slower; needs data.feed=memory",
    )
    strategy: Literal["ddp", "fsdp", "deepspeed"] = Field(
        "ddp",
        description="What each worker holds: the whole model (ddp), or its share of the weights, gradients and "
        "optimizer state (fsdp), for models that do not fit one GPU; or what zero_stage says (deepspeed)",
    )
    zero_stage: Annotated[int, Field(ge=0, le=3)] = Field(
        2,
        description="What workers divide with strategy=deepspeed: nothing (0), the optimizer's state (1), also "
        "gradients (2), also weights (3)",
    )
    compile: bool = Field(False, description="Compile the model with torch.compile")
    channels_last: bool = Field(False, description="Keep images channels-last in memory")

    @property
    def fixed_parts(self) -> int | None:
        """See :class:`TrainerSettings`."""
        return self.virtual_shards

    @property
    def libraries(self) -> tuple[str, ...]:
        """See :class:`TrainerSettings`."""
        return ("deepspeed",) if self.strategy == "deepspeed" else ()

    def check(self, settings: "Settings") -> None:
        """Refuse batches that do not divide among workers, more workers than shards, and frozen new weights."""
        self.check_freeze()
        if self.strategy != "ddp":
            self._check_strategy()
        workers = max(1, settings.scaling.num_workers)
        self.check_batch(workers, self.accumulation_steps)
        if self.virtual_shards is not None:
            _check_shards(self.virtual_shards, settings, self)

    def _check_strategy(self) -> None:
        refused = {
            "virtual_shards": self.virtual_shards is not None and "none",
            "compile": self.compile and "false",
            "channels_last": self.channels_last and "false",
            "precision": self.precision == "float16" and "bfloat16",
        }
        for name, instead in refused.items():
            if instead:
                raise ValueError(
                    f"training.{name}: not supported with training.strategy={self.strategy}; set "
                    f"training.{name}={instead}, or training.strategy=ddp"
                )


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
