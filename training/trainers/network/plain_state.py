"""Reduces the state of a training to what can be read back without running code."""

from collections import Counter
from typing import Any

import numpy as np
import torch  # noqa: TID253 - imported by processes that train

from training.errors import TrainingError

_PLAIN = (bool, int, float, str, type(None))


def plain_state(value: Any, name: str, remedy: str) -> Any:
    """`value` with dictionaries, lists and tuples of tensors, numbers and text alone; NumPy's scalars become Python's.

    Raises :class:`TrainingError` for a value of another type. `name` is the name of `value` in the message, and
    `remedy` is the end of the message.
    """
    if isinstance(value, dict):
        plain = {
            plain_state(key, f"a key of {name}", remedy): plain_state(part, f"{name}[{key!r}]", remedy)
            for key, part in value.items()
        }
        return Counter(plain) if type(value) is Counter else plain  # the milestones of MultiStepLR
    if type(value) in (list, tuple):
        parts = [plain_state(part, f"{name}[{index}]", remedy) for index, part in enumerate(value)]
        return tuple(parts) if isinstance(value, tuple) else parts
    # A number of NumPy, such as a computed learning rate, which torch.load would refuse.
    if isinstance(value, np.generic):
        return plain_state(value.item(), name, remedy)
    if isinstance(value, torch.Tensor) or type(value) in _PLAIN:
        return value
    raise TrainingError(
        f"{name} is of type {type(value).__name__}. A checkpoint holds only tensors, numbers and text, so that reading "
        f"it runs no code: {remedy}"
    )
