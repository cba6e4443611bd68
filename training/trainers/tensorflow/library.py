"""The import of TensorFlow and Keras, with the same configuration on every machine."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from training.errors import SettingError
from training.storage.files import temporary_folder

log = logging.getLogger("evergreen.tensorflow")

_BACKEND, _HOME, _LOG = "KERAS_BACKEND", "KERAS_HOME", "TF_CPP_MIN_LOG_LEVEL"


def tensorflow_keras() -> Any:
    """The module `keras`, on its TensorFlow backend. The user's `~/.keras/keras.json` is neither read nor written.

    Raises :class:`SettingError` if this process has imported Keras with another backend.
    """
    os.environ.setdefault(_LOG, "2")  # neither notes on the processor nor warnings on missing GPUs
    _import_triton()
    if "keras" in sys.modules:
        import keras
    else:
        with temporary_folder("keras") as home, _environment({_BACKEND: "tensorflow", _HOME: str(home)}):
            import keras
    if keras.config.backend() != "tensorflow":
        raise SettingError(
            f"trainer tensorflow: Keras was imported with its {keras.config.backend()} backend before the model was "
            f"built; import keras inside build_model, or set {_BACKEND}=tensorflow in the environment of the command"
        )
    keras.config.set_floatx("float32")
    keras.config.set_epsilon(1e-7)
    keras.config.set_image_data_format("channels_last")
    keras.config.set_dtype_policy("float32")
    return keras


def _import_triton() -> None:
    """Import triton, which torch imports when it needs it: after TensorFlow, its import ends the process (SIGSEGV)."""
    if "tensorflow" not in sys.modules and find_spec("triton") is not None:
        import_module("triton")


def prepare_tensorflow(threads: int, deterministic: str) -> None:
    """Set TensorFlow's number of threads and its determinism in this process; it computes on CPUs.

    If TensorFlow has started in this process, as in the process of the flow (`scaling.num_workers=0`), its number of
    threads can't change any more.
    """
    tensorflow_keras()
    import tensorflow

    config = tensorflow.config
    try:
        config.set_visible_devices([], "GPU")
        config.threading.set_intra_op_parallelism_threads(threads)
        config.threading.set_inter_op_parallelism_threads(max(2, threads))
    except RuntimeError:
        log.warning(
            "scaling.threads_per_worker has no effect: TensorFlow has already started in this process. With "
            "scaling.num_workers=1, the worker is a process for itself."
        )
    if deterministic != "off":
        config.experimental.enable_op_determinism()


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
