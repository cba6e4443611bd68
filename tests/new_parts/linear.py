"""The trainer `linear`: a linear model, trained by Evergreen's own loop. A module of the product."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from training.errors import SettingError
from training.records import DatasetVersion
from training.settings.network import OwnLoopSettings
from training.settings.sections import TrainerWords
from training.trainers.base import Promise
from training.trainers.choice import BySettings
from training.trainers.network.inspection import importances, model_digest, predictor

if TYPE_CHECKING:
    from torch import nn

    from training.attempts.job import TrainingJob
    from training.settings.schema import Settings
    from training.trainers.ranks import Ranks

__all__ = ["importances", "model_digest", "predictor"]  # see training.trainers.base.Inspection

DISTRIBUTIONS = ("torch",)
MODEL_FILE = "weights.safetensors"


class LinearSettings(OwnLoopSettings):
    """The section `training` of the trainer."""

    WORDS: ClassVar[TrainerWords] = TrainerWords(
        step="step",
        epoch="epoch",
        computed="gradients",
        kept="weights of epoch {}",
        section="How the weights are trained, of a recipe with trainer=Linear(...)",
    )
    FORMATS: ClassVar[tuple[str, ...]] = ("torch_export",)

    trainer: Literal["linear"] = Field("linear", description="The trainer that these settings are for")

    def check(self, settings: "Settings") -> None:
        """Refuse feeds other than `memory`, and batches that do not divide among workers and passes."""
        if settings.data.feed != "memory":
            raise ValueError("data.feed: trainer linear supports the feed memory only; use data.feed=memory")
        self.check_batch(max(1, settings.scaling.num_workers), self.accumulation_steps)


class Linear(BySettings):
    """The trainer in a recipe: `trainer=Linear(epochs=10)`."""

    SECTION = LinearSettings

    @staticmethod
    def build_model(shape: Any, outputs: int) -> "nn.Module":
        """The linear model of a table's rows, with `outputs` values for each."""
        from torch import nn

        return nn.Linear(shape[0], outputs)


def run_worker(job: "TrainingJob", ranks: "Ranks", node: str = "") -> None:
    """See :class:`training.trainers.base.Trainer`."""
    from training.trainers.network.building import memory_feed
    from training.trainers.own_loop.replica import LoopReplica
    from training.trainers.own_loop.worker import train

    check_dataset(job.settings, job.dataset)
    train(
        job,
        ranks,
        node,
        lambda job, _recipe, columns, learn, ranks: memory_feed(job, columns, learn, ranks),
        lambda recipe, job, ranks, total: LoopReplica(recipe, job.dataset, job.settings, ranks, total),
    )


def check_libraries(settings: "Settings") -> None:
    """Nothing: the trainer needs no further library."""


def check_dataset(settings: "Settings", version: DatasetVersion) -> None:
    """Raise :class:`SettingError` for rows that are not those of a table."""
    del settings
    if version.table is None:
        raise SettingError("trainer linear needs a table; use a source such as Table(path, target=...)")


def promise(settings: "Settings") -> Promise:
    """A killed training resumes at the step of its newest checkpoint, and ends with the same bits."""
    del settings
    return Promise(resumes="step", same_bits_after_kill=True, any_workers=False)


def steps_per_epoch(settings: "Settings", rows: int, world_size: int) -> int:
    """Optimizer steps of one epoch with `rows` rows to learn from."""
    from training.trainers.rows import order_of

    del world_size
    return order_of(settings, rows, rows_per_step(settings, rows)).steps_per_epoch


def rows_per_step(settings: "Settings", rows: int) -> int:
    """Rows of one optimizer step, over all workers."""
    return settings.training.rows_of_step or rows
