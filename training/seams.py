"""Registry of Evergreen's exchangeable parts: each problem, trainer, source, model format, tracker and store by name.

This module imports none of the parts, so that every other module may import it. The digest of this module is not in
the run key, so that adding a part retrains no model. docs/extending.md says what else a part needs.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ProblemName = str
TrainerName = str


class FormatPart(NamedTuple):
    """The module of a model format.

    `trainers` can register their models in the format although their settings do not list the format in `FORMATS`.
    """

    module: str
    trainers: tuple[TrainerName, ...] = ()


_SETTINGS = "settings"  # the module of a trainer's folder that has its settings section
_LOCK = Path(__file__).parents[1] / "requirements-all.lock"  # of a clone; a wheel does not contain the file
_APART = "tensorflow"  # the extra that the Makefile installs into an environment of its own

PROBLEMS: dict[ProblemName, str] = {
    "classification": "training.problems.classification:Classification",
    "regression": "training.problems.regression:Regression",
    "denoising": "training.problems.denoising:Denoising",
    "language_model": "training.problems.language_model:LanguageModel",
}
# The settings section of each trainer. If its module is `settings` in a folder, the trainer's other parts are modules
# of this folder; otherwise that module has all parts.
TRAINERS: dict[TrainerName, str] = {
    "torch": "training.trainers.torch.settings:TrainingSettings",
    "xgboost": "training.trainers.xgboost.settings:XGBoostSettings",
    "lightgbm": "training.trainers.lightgbm.settings:LightGBMSettings",
    "lightning": "training.trainers.lightning.settings:LightningSettings",
    "accelerate": "training.trainers.accelerate.settings:AccelerateSettings",
    "transformers": "training.trainers.transformers.settings:TransformersSettings",
    "keras": "training.trainers.keras.settings:KerasSettings",
    "tensorflow": "training.trainers.tensorflow.settings:TensorFlowSettings",
}
# The class that reads the source files of each kind.
SOURCES = {
    "digits": "training.data.sources.digits:Digits",
    "idx": "training.data.sources.idx:IdxFiles",
    "cifar": "training.data.sources.cifar:Cifar10",
    "folder": "training.data.sources.folder:ImageFolder",
    "folder-targets": "training.data.sources.folder_targets:ImageFolder",
    "parquet": "training.data.sources.parquet:ParquetImages",
    "parquet-targets": "training.data.sources.parquet_targets:ParquetTargets",
    "table": "training.data.sources.table:Table",
    "text": "training.data.sources.text:Text",
}
# Registered models record the name of their format, so a name must never change.
FORMATS = {
    "torch_export": FormatPart("tasks.model_formats.torch_export"),
    "xgboost_ubj": FormatPart("tasks.model_formats.xgboost_ubj"),
    "lightgbm_text": FormatPart("tasks.model_formats.lightgbm_text"),
    "keras_file": FormatPart("tasks.model_formats.keras_file"),
}
# Trackers besides MLflow.
TRACKERS = {
    "tensorboard": "tasks.trackers.tensorboard:TensorBoard",
    "wandb": "tasks.trackers.wandb:WeightsAndBiases",
    "comet": "tasks.trackers.comet:Comet",
}
# Object stores by the scheme of their URL. Only schemes are listed whose file system can create an object atomically,
# and fails if the object exists: otherwise one writer's commit of a checkpoint could overwrite another's.
STORES = {
    "file": "training.storage.objects.local",
    "s3": "training.storage.objects.remote",
    "gs": "training.storage.objects.remote",
    "abfs": "training.storage.objects.remote",
}
# Optional libraries that parts need: import name of the library, and the extra of pyproject.toml that installs it. An
# extra comes before the extras whose libraries it also installs.
EXTRAS = {
    "diffusers": "diffusion",
    "xgboost": "boosting",
    "lightgbm": "boosting",
    "lightning": "lightning",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "torchmetrics": "torchmetrics",
    "tokenizers": "transformers",
    "tensorflow": "tensorflow",
    "h5py": "tensorflow",
    "keras": "keras",
    "wandb": "wandb",
    "comet_ml": "comet",
}


def extra_of(libraries: Iterable[str]) -> str:
    """The extra of pyproject.toml that installs what is optional among `libraries`; empty if nothing is.

    Of several extras, the first in :data:`EXTRAS`.
    """
    wanted = set(libraries)
    return next((extra for name, extra in EXTRAS.items() if name in wanted), "")


def install_command(library: str) -> str:
    """The command that installs a library, by its import name; in a clone of the repository, that of its Makefile."""
    name = library.partition(".")[0]
    if name not in EXTRAS:
        return f"pip install {name}"
    if _LOCK.is_file():
        return f"make setup EXTRAS={_APART if EXTRAS[name] == _APART else 'all'}"
    return f'pip install "evergreen-ml[{EXTRAS[name]}]"'


def trainer_part(name: TrainerName, part: str) -> str:
    """Name of the module with a part of a trainer: of its folder, or of the only file of a trainer without folder.

    Raises ValueError for an unknown trainer.
    """
    _check_known(TRAINERS, name)
    package, _, module = TRAINERS[name].partition(":")[0].rpartition(".")
    return f"{package}.{part if module == _SETTINGS else module}"


def formats_of(trainer: TrainerName, own: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the formats of a trainer's models: `own`, which its settings name, then those that name the trainer."""
    return (*own, *(name for name, part in FORMATS.items() if trainer in part.trainers and name not in own))


def part_named(parts: Mapping[str, str], name: str) -> Any:
    """Import the module of a part and return the part: the module, or its attribute that `parts` names after a colon.

    Raises ValueError for a name that is not in `parts`.
    """
    _check_known(parts, name)
    module, _, attribute = parts[name].partition(":")
    return getattr(import_module(module), attribute) if attribute else import_module(module)


def _check_known(parts: Mapping[str, str], name: str) -> None:
    if name not in parts:
        raise ValueError(f"{name!r} is not known to this version of Evergreen, which has {', '.join(parts)}")
