"""The import of TensorFlow and Keras, with the same configuration on every machine."""

import logging
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from training.trainers.network.keras_import import keras_on, set_defaults

log = logging.getLogger("evergreen.tensorflow")

_LOG = "TF_CPP_MIN_LOG_LEVEL"


def tensorflow_keras() -> Any:
    """The module `keras`, on its TensorFlow backend; see :func:`keras_on`."""
    os.environ.setdefault(_LOG, "2")  # neither notes on the processor nor warnings on missing GPUs
    _import_triton()
    keras = keras_on("tensorflow", "tensorflow")
    set_defaults(keras)
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
