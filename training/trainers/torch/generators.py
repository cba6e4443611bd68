"""The global generators of random numbers in a training process: torch's, NumPy's and Python's, seeded together.

A model or a dataset of a recipe may draw from any of them. Each step and each row of a recipe's dataset seeds all three
from its key, so there is no generator state that a checkpoint would have to hold.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def seed_generators(key: np.uint64, on_gpu: bool = False) -> None:
    """Seed all three from a 64-bit key; `on_gpu` includes torch's generators of the GPUs.

    On a CPU this takes 10 µs. `torch.manual_seed` takes 190 µs there: it formats the call stack for a CUDA that is not
    initialised.
    """
    import torch

    number = int(key)
    if on_gpu:
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)  # the only seeding of the global generator that NumPy has


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put the state of all three generators back after the block."""
    import torch

    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    torchs, numpys, pythons = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(torchs)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)
        np.random.set_state(numpys)
        random.setstate(pythons)
