"""What other steps read from a training by Lightning; see :class:`training.trainers.base.Inspection`."""

from training.trainers.network.inspection import importances, model_digest, predictor

__all__ = ["importances", "model_digest", "predictor"]
