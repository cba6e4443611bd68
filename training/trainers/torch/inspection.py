"""What verification and report read from the files of the PyTorch loop (:class:`training.trainers.base.Inspection`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.checkpoints.weights import weights_digest


def model_digest(state: Mapping[str, Any], epoch: int) -> str:
    """Digest of the network's tensors."""
    del epoch
    return weights_digest(state["learner"]["model"])


def importances(model: Path) -> dict[str, float]:
    """None: a network has no splits."""
    del model
    return {}
