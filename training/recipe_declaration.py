"""A recipe: a model, its data and its settings, as a recipe file declares them with `recipe = Recipe(...)`.

A recipe file imports torch inside `build_model`, so that commands that do not train (listing, planning, a run whose
results all exist) start fast. :mod:`training.recipe` loads recipe files.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.data.images.augmentation import Augmentation
from training.data.sources import Source
from training.data.sources.text import Text
from training.default_trainers import default_trainer
from training.errors import SettingError
from training.preprocessors import declared_steps
from training.problems.base import Problem
from training.problems.classification import Classification
from training.recipe_checks import check_augmentation_is_used, check_fields
from training.recipe_metrics import BuildMetric, check_declared
from training.records import DatasetVersion, Split
from training.settings.schema import Settings
from training.torch_choice import BuildModel as BuildModel
from training.torch_choice import Torch as Torch

if TYPE_CHECKING:
    from ray.data.preprocessor import Preprocessor
    from torch.utils.data import Dataset

    from training.trainers.choice import TrainerChoice

TransformRows = Callable[[Any], Any]


@dataclass(frozen=True)
class Recipe:
    """A model, its data and its settings.

    `problem` says what the model learns: `Classification()`, `Regression()`, `LanguageModel()` or `Denoising()`.
    `trainer` says how: `Torch(build_model)` or `XGBoost(...)`; `build_model` alone stands for `Torch(build_model)`.
    Without both, source and problem decide (:func:`training.default_trainers.default_trainer`); `chosen` then
    describes the trainer, and `chosen_file` is the file that builds its network.

    `dataset(version, split)`, if given, returns a map-style torch Dataset of (uint8 image, label) pairs for
    `data.feed=loader`; by default the rows of the dataset version are used. `files` lists the other files that
    `build_model` reads, relative to the recipe file: they are part of the run key and are copied into the run's folder.

    `transform_rows(rows)`, if given, changes the rows while the dataset is prepared, in Ray Data tasks on all CPUs: for
    images, `rows` is a uint8 array (rows, channels, height, width), and so is the result, of the same shape; for a
    table, `rows` is a pandas DataFrame with the features (no target), and so is the result, with one row for each row,
    and maybe other columns. Each row's result must depend on that row alone. `predict` calls the function as well. The
    file that defines the function, and the files that this file imports, are part of the dataset's identity.

    `preprocessors`, for a table, are unfitted preprocessors of `ray.data.preprocessors`, applied in this order, after
    `transform_rows`. Evergreen fits them on the training rows, without validation rows. The registered model contains
    them, and takes the columns before them. :data:`training.preprocessors.SUPPORTED` lists the classes; a Chain is
    taken, too.

    `metrics`, for a trainer of neural networks, maps names to functions that take the number of outputs and return a
    metric of TorchMetrics with a single number as its value. The metric gets predictions and targets: probabilities
    (rows, classes) and numbers of classes (rows,); of a regression, numbers (rows,) in the unit of the target for both.

    Raises :class:`SettingError` for a field of another type, for a recipe without source or with two trainers, without
    a model if its problem has no default one, for settings of another trainer, for a tokenizer of the trainer that is
    not the source's, for a preprocessor that is fitted already or not supported, for metrics that the trainer does not
    compute or whose name Evergreen uses itself, and for a `dataset` or an augmentation that the trainer does not use.
    """

    name: str
    summary: str = ""
    source: Source = None  # type: ignore[assignment]  # required, but after a field with a default
    problem: Problem = field(default_factory=Classification)
    trainer: "TrainerChoice | None" = None
    settings: Settings = field(default_factory=Settings)
    build_model: BuildModel | None = None
    augmentation: Augmentation = field(default_factory=Augmentation)
    dataset: Callable[[DatasetVersion, Split], "Dataset[Any]"] | None = None
    files: tuple[str, ...] = ()
    transform_rows: TransformRows | None = None
    preprocessors: "Preprocessor | Sequence[Preprocessor]" = ()
    metrics: Mapping[str, BuildMetric] = field(default_factory=dict)
    chosen: str = field(init=False, default="")
    chosen_file: Path | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        check_fields(self)
        needs_model = getattr(self.trainer, "build_model", ...) is None
        if self.trainer is not None and self.build_model is not None and not needs_model:
            raise SettingError(
                f"recipe {self.name}: give either trainer, such as XGBoost(), or build_model, a function that returns "
                "a PyTorch module"
            )
        if needs_model and self.build_model is None:
            raise SettingError(
                f"recipe {self.name}: its trainer needs build_model, a function that returns a PyTorch module"
            )
        if self.trainer is None and self.build_model is None:
            trainer, chosen, file = default_trainer(self.source, self.problem)
            object.__setattr__(self, "chosen", chosen)
            object.__setattr__(self, "chosen_file", file)
        else:
            trainer = self.trainer or Torch(self.build_model)  # type: ignore[arg-type]  # one of both is given
        object.__setattr__(self, "trainer", trainer)
        if (own := getattr(trainer, "build_model", None) or self.build_model) is not None:
            object.__setattr__(self, "build_model", self.problem.adapted(own))
        object.__setattr__(self, "settings", trainer.adapted(self.settings))
        if self.dataset is not None and not self.settings.training.READS_DATASET:
            raise SettingError(
                f"recipe {self.name}: dataset: trainer {self.settings.trainer} does not read a Dataset of your own, "
                "but the rows of the dataset version; remove dataset, or use Torch(build_model) with data.feed=loader"
            )
        check_augmentation_is_used(self)
        if (tokenizer := getattr(trainer, "tokenizer", None)) is not None:
            object.__setattr__(self, "source", self._read_by(tokenizer))
        declared_steps(self.name, self.preprocessors)  # refuses what is not supported
        check_declared(self.name, self.metrics, self.problem, self.settings)

    def unused_dataset(self, settings: Settings) -> str:
        """A warning for people if `dataset` is given and has no effect with the feed of `settings`; else ""."""
        if self.dataset is None or settings.data.feed == "loader":
            return ""
        return (
            f"recipe {self.name}: its dataset has no effect with data.feed={settings.data.feed}, which reads the rows "
            "of the dataset version; set data.feed=loader, or remove dataset"
        )

    def _read_by(self, tokenizer: str | Path) -> Source:
        """The source with the trainer's tokenizer. Raises :class:`SettingError` if it has another, or no texts."""
        if not isinstance(self.source, Text):
            raise SettingError(
                f"recipe {self.name}: its trainer names a tokenizer, and its source is no Text; remove tokenizer"
            )
        own = self.source.tokenizer
        if own is not None and str(own) != str(tokenizer):
            raise SettingError(
                f"recipe {self.name}: its source names the tokenizer {str(own)!r}, its trainer {str(tokenizer)!r}; "
                "name it once"
            )
        return replace(self.source, tokenizer=tokenizer)
