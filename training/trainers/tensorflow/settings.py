"""Settings of the trainer `tensorflow`, and its terms in messages and reports."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from training.settings.arguments import NetworkArguments
from training.settings.network import NetworkSettings
from training.settings.sections import NonNegativeFloat, PositiveFloat, Share, TrainerWords

if TYPE_CHECKING:
    from training.settings.schema import Settings


class TensorFlowSettings(NetworkSettings):
    """The trainer `tensorflow`: epochs, batch size, optimizer of Keras, schedule."""

    WORDS: ClassVar[TrainerWords] = TrainerWords(
        step="step",
        epoch="epoch",
        computed="gradients",
        kept="weights of epoch {}",
        section="How the weights are trained, of a recipe with trainer=TensorFlow(...)",
    )
    FORMATS: ClassVar[tuple[str, ...]] = ("keras_file",)

    trainer: Literal["tensorflow"] = Field(
        "tensorflow", description="The trainer that these settings are for"
    )
    optimizer: Literal["adamw", "adam", "sgd"] = Field("adamw", description="Optimizer of Keras")
    learning_rate: PositiveFloat = Field(1e-3, description="Peak learning rate")
    weight_decay: NonNegativeFloat = Field(1e-2, description="Decoupled weight decay, of all optimizers")
    momentum: Share = Field(0.9, description="Momentum of sgd")
    schedule: Literal["constant", "cosine", "one_cycle", "step"] = Field(
        "cosine", description="Learning rate over time"
    )
    warmup_share: Share = Field(
        0.05, description="Share of all steps over which the learning rate rises to its peak"
    )

    @property
    def can_use_gpus(self) -> bool:
        """See :class:`TrainerSettings`."""
        return False

    def check(self, settings: "Settings") -> None:
        """Refuse feeds other than `memory`, GPUs, and batches that do not divide among the workers."""
        if settings.data.feed != "memory":
            raise ValueError(
                "data.feed: trainer tensorflow supports the feed memory only; use data.feed=memory"
            )
        if settings.scaling.use_gpu == "yes":
            raise ValueError(
                "scaling.use_gpu: trainer tensorflow computes on CPUs only; use scaling.use_gpu=no"
            )
        self.check_batch(max(1, settings.scaling.num_workers), 1)


class TensorFlowArguments(NetworkArguments, total=False):
    """The fields of :class:`TensorFlowSettings`, as keyword arguments."""

    optimizer: Literal["adamw", "adam", "sgd"]
    learning_rate: float
    weight_decay: float
    momentum: float
    schedule: Literal["constant", "cosine", "one_cycle", "step"]
    warmup_share: float
