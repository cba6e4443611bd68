"""What other steps read from the files of a trained network; see :class:`training.trainers.base.Inspection`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.checkpoints.weights import weights_digest
from training.problems import problem_named

if TYPE_CHECKING:
    from training.problems.base import Predict
    from training.recipe import Recipe
    from training.records import DatasetVersion, TrainedModel


def predictor(recipe: "Recipe", version: "DatasetVersion", trained: "TrainedModel") -> "Predict":
    """A function that maps inputs to predictions, with the weights of a finished training.

    Raises :class:`training.errors.DataError` if the weights file is not what training wrote.
    """
    from training.trainers.network import serving

    problem = problem_named(version.problem)
    rows = problem.rows_at_once(problem.outputs(version), version.table)
    return serving.predictor(serving.serving_module(recipe, version, trained), rows)


def model_digest(state: Mapping[str, Any], epoch: int) -> str:
    """Digest of the network's tensors."""
    del epoch
    return weights_digest(state["learner"]["model"])


def importances(model: Path) -> dict[str, float]:
    """Empty: a network has no splits."""
    del model
    return {}
