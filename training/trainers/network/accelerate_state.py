"""Accelerate's global state in a training process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from training.trainers.ranks import Ranks

_USE_CPU = "ACCELERATE_USE_CPU"


@contextmanager
def new_accelerate(ranks: Ranks) -> Iterator[None]:
    """Remove Accelerate's global objects before and after the block, and set the device that Ray has chosen.

    The objects hold the device and precision of a process, and Accelerate's public API cannot remove them. Otherwise a
    later training in this process would use the device and precision of this one.
    """
    from accelerate.state import AcceleratorState, GradientState

    def forget() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    before = os.environ.get(_USE_CPU)
    os.environ[_USE_CPU] = str(ranks.device.type == "cpu").lower()
    forget()
    try:
        yield
    finally:
        forget()
        if before is None:
            del os.environ[_USE_CPU]
        else:
            os.environ[_USE_CPU] = before
