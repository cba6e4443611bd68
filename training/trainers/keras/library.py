"""The import of Keras on its torch backend, with the same configuration on every machine."""

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from training.errors import SettingError
from training.storage.files import temporary_folder

_BACKEND, _HOME = "KERAS_BACKEND", "KERAS_HOME"


def torch_keras() -> Any:
    """The module `keras`, on its torch backend. The user's `~/.keras/keras.json` is neither read nor written.

    Raises :class:`SettingError` if this process has imported Keras with another backend.
    """
    if "keras" in sys.modules:
        import keras
    else:
        with temporary_folder("keras") as home, _environment({_BACKEND: "torch", _HOME: str(home)}):
            import keras
    if keras.config.backend() != "torch":
        raise SettingError(
            f"trainer keras: Keras was imported with its {keras.config.backend()} backend before the model was built; "
            f"import keras inside build_model, or set {_BACKEND}=torch in the environment of the command"
        )
    return keras


def set_defaults(keras: Any) -> None:
    """Set Keras' global settings to its defaults, whatever an earlier model or the user's file has set."""
    keras.config.set_floatx("float32")
    keras.config.set_epsilon(1e-7)
    keras.config.set_image_data_format("channels_last")
    keras.config.set_dtype_policy("float32")


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


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
