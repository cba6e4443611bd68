"""Keras on its torch backend: its import, and the seeds of its layers."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from training.trainers.network.keras_import import keras_on


def torch_keras() -> Any:
    """The module `keras`, on its torch backend; see :func:`keras_on`."""
    return keras_on("torch", "keras")


@contextmanager
def seeds_from_torch() -> Iterator[None]:
    """While the block runs, layers and initializers without a seed take their seeds from the seed of torch's generator.

    Keras draws these seeds from Python's `random`, the generator of the whole process. Other threads may draw from the
    same generator meanwhile, such as that of Prefect's event client when it connects again: the model then got other
    initial weights. Keras has no public way to name another generator, so its module gets a generator of its own, with
    the numbers that `random` gives right after :func:`training.trainers.generators.seed_generators`. A version of
    Keras without this module keeps Python's `random`.
    """
    import torch

    try:
        from keras.src.random import seed_generator as module
    except ImportError:
        module = None
    if module is None or getattr(module, "python_random", None) is not random:
        yield
        return
    module.python_random = random.Random(torch.initial_seed())
    try:
        yield
    finally:
        module.python_random = random
