"""Evergreen's public API: the names on which recipes and programs may rely.

`from evergreen import Recipe, ImageFolder` in a recipe file for images, `from evergreen import Recipe, Table` in one
for a table, `from evergreen import retrain` in a program. Each name is imported when it is first used, so that `import
evergreen` itself is fast. All other modules may change between versions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.local.api import accept, plan, predict, retrain, rollback, tune
    from flows.preview import Preview
    from tasks.predict import PredictionSummary
    from training.data.dataset import open_columns
    from training.data.images.augmentation import Augmentation
    from training.data.sources.cifar import Cifar10
    from training.data.sources.digits import Digits
    from training.data.sources.folder_targets import ImageFolder
    from training.data.sources.idx import IdxFiles
    from training.data.sources.parquet import ParquetImages
    from training.data.sources.sklearn_tables import BundledTable
    from training.data.sources.table import Table
    from training.data.sources.text import Text
    from training.errors import EvergreenError
    from training.problems.classification import Classification
    from training.problems.denoising import Denoising
    from training.problems.language_model import LanguageModel
    from training.problems.regression import Regression
    from training.recipe import Recipe, Torch
    from training.recipe import load as load_recipe
    from training.records import DatasetVersion, ImageShape, Release, Split
    from training.search.records import Search, SearchResult, Trial, TrialResult
    from training.settings.schema import (
        CheckpointSettings,
        DataSettings,
        FailureSettings,
        GateSettings,
        RaySettings,
        ScalingSettings,
        Settings,
        StorageSettings,
        TrackingSettings,
    )
    from training.text_shape import TextShape
    from training.trainers.accelerate.choice import Accelerate
    from training.trainers.accelerate.settings import AccelerateSettings
    from training.trainers.accelerate.training_loop import TrainingLoop
    from training.trainers.keras.choice import Keras
    from training.trainers.keras.settings import KerasSettings
    from training.trainers.lightgbm.choice import LightGBM
    from training.trainers.lightgbm.settings import LightGBMSettings
    from training.trainers.lightning.choice import Lightning
    from training.trainers.lightning.settings import LightningSettings
    from training.trainers.tensorflow.choice import TensorFlow
    from training.trainers.tensorflow.settings import TensorFlowSettings
    from training.trainers.torch.settings import TrainingSettings
    from training.trainers.transformers.choice import Transformers
    from training.trainers.transformers.settings import TransformersSettings
    from training.trainers.xgboost.choice import XGBoost
    from training.trainers.xgboost.settings import XGBoostSettings

__all__ = [
    "Accelerate",
    "AccelerateSettings",
    "Augmentation",
    "BundledTable",
    "CheckpointSettings",
    "Cifar10",
    "Classification",
    "DataSettings",
    "DatasetVersion",
    "Denoising",
    "Digits",
    "EvergreenError",
    "FailureSettings",
    "GateSettings",
    "IdxFiles",
    "ImageFolder",
    "ImageShape",
    "Keras",
    "KerasSettings",
    "LanguageModel",
    "LightGBM",
    "LightGBMSettings",
    "Lightning",
    "LightningSettings",
    "ParquetImages",
    "PredictionSummary",
    "Preview",
    "RaySettings",
    "Recipe",
    "Regression",
    "Release",
    "ScalingSettings",
    "Search",
    "SearchResult",
    "Settings",
    "Split",
    "StorageSettings",
    "Table",
    "TensorFlow",
    "TensorFlowSettings",
    "Text",
    "TextShape",
    "Torch",
    "TrackingSettings",
    "TrainingLoop",
    "TrainingSettings",
    "Transformers",
    "TransformersSettings",
    "Trial",
    "TrialResult",
    "XGBoost",
    "XGBoostSettings",
    "accept",
    "load_recipe",
    "open_columns",
    "plan",
    "predict",
    "retrain",
    "rollback",
    "tune",
]

_SETTINGS = "training.settings.schema"
_MODULES = {
    "Accelerate": "training.trainers.accelerate.choice",
    "AccelerateSettings": "training.trainers.accelerate.settings",
    "Augmentation": "training.data.images.augmentation",
    "BundledTable": "training.data.sources.sklearn_tables",
    "Cifar10": "training.data.sources.cifar",
    "Classification": "training.problems.classification",
    "DatasetVersion": "training.records",
    "Denoising": "training.problems.denoising",
    "Digits": "training.data.sources.digits",
    "EvergreenError": "training.errors",
    "IdxFiles": "training.data.sources.idx",
    "ImageFolder": "training.data.sources.folder_targets",
    "ImageShape": "training.records",
    "Keras": "training.trainers.keras.choice",
    "KerasSettings": "training.trainers.keras.settings",
    "LanguageModel": "training.problems.language_model",
    "LightGBM": "training.trainers.lightgbm.choice",
    "LightGBMSettings": "training.trainers.lightgbm.settings",
    "Lightning": "training.trainers.lightning.choice",
    "LightningSettings": "training.trainers.lightning.settings",
    "TrainingLoop": "training.trainers.accelerate.training_loop",
    "ParquetImages": "training.data.sources.parquet",
    "PredictionSummary": "tasks.predict",
    "Preview": "flows.preview",
    "Recipe": "training.recipe",
    "Regression": "training.problems.regression",
    "Release": "training.records",
    "Search": "training.search.records",
    "SearchResult": "training.search.records",
    "Trial": "training.search.records",
    "TrialResult": "training.search.records",
    "Split": "training.records",
    "Table": "training.data.sources.table",
    "TensorFlow": "training.trainers.tensorflow.choice",
    "TensorFlowSettings": "training.trainers.tensorflow.settings",
    "Text": "training.data.sources.text",
    "TextShape": "training.text_shape",
    "Torch": "training.recipe",
    "TrainingSettings": "training.trainers.torch.settings",
    "Transformers": "training.trainers.transformers.choice",
    "TransformersSettings": "training.trainers.transformers.settings",
    "XGBoost": "training.trainers.xgboost.choice",
    "XGBoostSettings": "training.trainers.xgboost.settings",
    "accept": "flows.local.api",
    "load_recipe": "training.recipe",
    "open_columns": "training.data.dataset",
    "plan": "flows.local.api",
    "predict": "flows.local.api",
    "retrain": "flows.local.api",
    "rollback": "flows.local.api",
    "tune": "flows.local.api",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_MODULES.get(name, _SETTINGS))
    value = getattr(module, "load" if name == "load_recipe" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
