"""The import of Keras on one of its backends, with the same configuration on every machine."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from training.errors import SettingError
from training.storage.files import temporary_folder

_BACKEND, _HOME = "KERAS_BACKEND", "KERAS_HOME"


def keras_on(backend: str, trainer: str) -> Any:
    """The module `keras`, on `backend`. The user's `~/.keras/keras.json` is neither read nor written.

    Raises :class:`SettingError`, which names `trainer`, if this process has imported Keras with another backend.
    """
    if "keras" in sys.modules:
        import keras
    else:
        with temporary_folder("keras") as home, _environment({_BACKEND: backend, _HOME: str(home)}):
            import keras
    if keras.config.backend() != backend:
        raise SettingError(
            f"trainer {trainer}: Keras was imported with its {keras.config.backend()} backend before the model was "
            f"built; import keras inside build_model, or set {_BACKEND}={backend} in the environment of the command"
        )
    return keras


def set_defaults(keras: Any) -> None:
    """Set Keras' global settings to its defaults, whatever an earlier model or the user's file has set."""
    keras.config.set_floatx("float32")
    keras.config.set_epsilon(1e-7)
    keras.config.set_image_data_format("channels_last")
    keras.config.set_dtype_policy("float32")


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
