"""The parts behind Evergreen's seams by name: a line for each problem, trainer, model format, tracker and object store.

This module imports none of the parts, so that every other module may import it. It is not in the run key: a further
part retrains nothing. docs/extending.md says what else a part needs.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

ProblemName = str
TrainerName = str

PROBLEMS: dict[ProblemName, str] = {
    "classification": "training.problems.classification:Classification",
    "regression": "training.problems.regression:Regression",
}
# The section of settings of each trainer; its other modules are in the same folder.
TRAINERS: dict[TrainerName, str] = {
    "torch": "training.trainers.torch.settings:TrainingSettings",
    "xgboost": "training.trainers.xgboost.settings:XGBoostSettings",
}
# Registered models name their format, so a name stays.
FORMATS = {
    "torch_export": "tasks.model_formats.torch_export",
    "xgboost_ubj": "tasks.model_formats.xgboost_ubj",
}
# Trackers besides MLflow.
TRACKERS = {"tensorboard": "tasks.trackers.tensorboard:TensorBoard"}
# Object stores by the scheme of their URL. A scheme is listed if its file system creates an object atomically: commits
# of checkpoints would be lost otherwise.
STORES = {
    "file": "training.storage.objects.local",
    "s3": "training.storage.objects.remote",
    "gs": "training.storage.objects.remote",
    "abfs": "training.storage.objects.remote",
}
# Libraries of parts that are installed on request, by import name, and the extra of pyproject.toml for each.
EXTRAS = {"xgboost": "boosting"}


def install_command(library: str) -> str:
    """The command that installs a library, by its import name."""
    name = library.partition(".")[0]
    return f'pip install "evergreen-ml[{EXTRAS[name]}]"' if name in EXTRAS else f"pip install {name}"


def part_named(parts: Mapping[str, str], name: str) -> Any:
    """Import the module of a part and return the part: the module, or what `parts` names of it after a colon.

    Raises ValueError for a name that is not in `parts`.
    """
    if name not in parts:
        raise ValueError(f"{name!r} is not known to this version of Evergreen, which has {', '.join(parts)}")
    module, _, attribute = parts[name].partition(":")
    return getattr(import_module(module), attribute) if attribute else import_module(module)
