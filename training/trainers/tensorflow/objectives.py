"""TensorFlow's losses, by the names that the problems' objectives give them."""

from collections.abc import Callable, Mapping
from typing import Any

from training.errors import SettingError
from training.problems.objectives import objective_named
from training.records import DatasetVersion


def _cross_entropy(output: Any, targets: Any) -> Any:
    import tensorflow

    losses = tensorflow.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=output)
    return tensorflow.reduce_sum(losses)


def _squared_error(output: Any, targets: Any) -> Any:
    import tensorflow

    return tensorflow.reduce_sum(tensorflow.square(output - targets))


# (output (rows, outputs), targets as :meth:`training.problems.objectives.Objective.torch_targets` gives them) -> sum of
# losses over the rows.
LOSSES: Mapping[str, Callable[[Any, Any], Any]] = {
    "cross_entropy": _cross_entropy,
    "squared_error": _squared_error,
}


def loss_of(version: DatasetVersion) -> Callable[[Any, Any], Any]:
    """The loss of a dataset's problem. Raises :class:`SettingError` if it is none of :data:`LOSSES`."""
    wanted = objective_named(version.problem).loss
    if wanted not in LOSSES:
        raise SettingError(
            f"trainer tensorflow can't learn the problem {version.problem}, which minimises {wanted}; use another "
            "trainer, such as Torch(build_model)"
        )
    return LOSSES[wanted]
