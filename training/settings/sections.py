"""What sections of the settings tree have in common, and the interface of the section of a trainer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

if TYPE_CHECKING:
    from training.settings.schema import Settings

Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def listed(value: object) -> object:
    """Split comma-separated names, as `--set` gives them, into a list; other values are returned unchanged."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def once(names: tuple[str, ...]) -> tuple[str, ...]:
    """`names` without repetitions."""
    return tuple(dict.fromkeys(names))


class Section(BaseModel):
    """Base class of all sections: immutable; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class TrainerWords:
    """Terms of a trainer: its step and epoch in the singular, what its workers compute, what becomes the model.

    `section` describes the section `training` in the help of the command. `gain` is the library's name for the
    importances of the columns (:meth:`training.trainers.base.Inspection.importances`), of trainers that have them.
    """

    step: str
    epoch: str
    computed: str
    kept: str
    section: str
    gain: str = ""


def _pairs(value: object) -> object:
    """Weights by class as sorted pairs; a setting that is a mapping would be taken for a section."""
    if value == "none":
        return None
    if not isinstance(value, Mapping):
        return value
    for name, weight in value.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise ValueError(f"class {name!r} needs a finite weight above 0, got {weight!r}")
    return tuple(sorted((str(name), float(weight)) for name, weight in value.items()))


ClassWeights = Annotated[Literal["balanced"] | tuple[tuple[str, float], ...] | None, BeforeValidator(_pairs)]


Threshold = Annotated[
    Annotated[float, Field(gt=0, lt=1)]
    | Literal["f1", "balanced_accuracy"]
    | tuple[tuple[str, float], ...]
    | None,
    BeforeValidator(_pairs),
]
THRESHOLD = (
    "Probability of the second of two classes from which it is the answer: a number, or the best on the validation "
    "rows by f1 (of the rarer class), by balanced_accuracy, or by the cost of a mistake on a row of each class, as "
    '{"ill": 10, "well": 1}; none: the likelier class'
)


class TrainerSettings(Section):
    """The section `training` of a trainer, `training/trainers/<name>/settings.py`.

    Plans store the section. Unless the trainer is `torch`, a field `trainer` names the trainer. `FORM` names the
    settings for fields of the run form that have another name with this trainer, or None for a field that the trainer
    does not have. `FORMATS` names the formats in which the trainer's models can be registered, the default first;
    a format can also name its trainers (:func:`training.seams.formats_of`). `NOT_IN_KEY` names the settings that are no
    ingredients of the run key.
    `COMPUTES_METRICS` says whether the trainer computes the metrics of a recipe (:mod:`training.recipe_metrics`), and
    `READS_DATASET` whether it reads a recipe's own torch Dataset (`Recipe(dataset=...)`) with `data.feed=loader`.
    """

    WORDS: ClassVar[TrainerWords]
    FORMATS: ClassVar[tuple[str, ...]]
    FORM: ClassVar[Mapping[str, str | None]] = {}
    NOT_IN_KEY: ClassVar[tuple[str, ...]] = ()
    COMPUTES_METRICS: ClassVar[bool] = False
    READS_DATASET: ClassVar[bool] = False

    @property
    def total_epochs(self) -> int:
        """Epochs of the training."""
        raise NotImplementedError

    @property
    def step_limit(self) -> int | None:
        """Limit of the number of steps, or None."""
        return None

    @property
    def rows_of_step(self) -> int | None:
        """Rows of one step over all workers; None: all rows."""
        return None

    @property
    def passes_of_step(self) -> int:
        """Passes into which each worker divides its rows of a step."""
        return 1

    @property
    def fixed_passes(self) -> int:
        """Passes that each worker does in every step, so that also an epoch's last step needs a row for each pass.

        1 for a trainer that does fewer passes in a step with few rows.
        """
        return 1

    @property
    def fixed_parts(self) -> int | None:
        """Parts into which a step's rows are divided, whatever the number of workers; None: one for each worker."""
        return None

    @property
    def balances_classes(self) -> bool:
        """Whether every step has the same number of rows of each class."""
        return False

    @property
    def patience(self) -> int | None:
        """Epochs without a lower validation loss after which the training ends early; None: never."""
        return None

    @property
    def can_use_gpus(self) -> bool:
        """Whether the trainer, as installed here, can compute on GPUs; else `scaling.use_gpu=auto` means CPUs."""
        return True

    @property
    def uses_float16(self) -> bool:
        """Whether the training computes in float16, which needs CUDA."""
        return False

    @property
    def keeps_best(self) -> bool:
        """Whether the epoch with the least validation loss becomes the model; else the last epoch does."""
        return True

    @property
    def libraries(self) -> tuple[str, ...]:
        """Optional libraries that these settings need, besides `DISTRIBUTIONS` of the trainer."""
        return ()

    @property
    def initial_weights(self) -> str | None:
        """What names the weights to start from (:mod:`training.initial_weights`); None: new ones."""
        return None

    def beside(self, folder: Path) -> Self:
        """The section with relative paths, which a recipe in `folder` gives, as absolute ones."""
        del folder
        return self

    def check(self, settings: "Settings") -> None:
        """Raise ValueError for settings that contradict this section, or that the trainer does not support."""


class WeighingSettings(TrainerSettings):
    """The section of a trainer whose loss takes weights of rows (:mod:`training.trainers.row_weights`)."""

    class_weights: ClassWeights = Field(
        None,
        description="Weights of the classes in the loss: balanced (rows / (classes x rows of the class)), or a weight "
        'by class, such as {"ill": 5}, where other classes have 1; none: 1 for each class',
    )
