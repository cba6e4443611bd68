"""Accelerate's global state in a training process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from training.errors import TrainingError
from training.trainers.ranks import Ranks

_PREFIX = "ACCELERATE_"
_USE_CPU = "ACCELERATE_USE_CPU"
_LOCAL_RANK = "LOCAL_RANK"  # the number of the process on its node; to Accelerate, also that of its GPU
# Variables by which an `Accelerator` tells the process that it got a plugin, and the plugin's name for people.
_PLUGINS = {"ACCELERATE_USE_FSDP": "an FSDP plugin", "ACCELERATE_USE_DEEPSPEED": "a DeepSpeed plugin"}


@contextmanager
def new_accelerate(ranks: Ranks) -> Iterator[None]:
    """Remove Accelerate's global objects before and after the block, and set the device that Ray has chosen.

    The objects hold the device and precision of a process, and Accelerate's public API cannot remove them. Otherwise a
    later training in this process would use the device and precision of this one.

    The block begins without Accelerate's other variables, such as `ACCELERATE_MIXED_PRECISION`: they would change the
    weights, and are no part of the run key.
    """
    from accelerate.state import AcceleratorState, GradientState

    def forget() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    of_accelerate = {name for name in os.environ if name.startswith(_PREFIX)}
    names = {_USE_CPU, _LOCAL_RANK, *_PLUGINS, *of_accelerate}
    before = {name: os.environ[name] for name in names if name in os.environ}
    for name in of_accelerate:
        del os.environ[name]
    os.environ[_USE_CPU] = str(ranks.device.type == "cpu").lower()
    if ranks.distributed and ranks.device.type == "cuda":
        # With scaling.gpus_per_worker other than 1, the worker's GPU has another number than the worker.
        os.environ[_LOCAL_RANK] = str(ranks.device.index or 0)
    forget()
    try:
        yield
    finally:
        forget()
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


def check_no_plugin() -> None:
    """Raise :class:`TrainingError` if an `Accelerator` of this process got a plugin that divides the model.

    On CPUs, Accelerate silently ignores an FSDP plugin: each worker would hold the whole model.
    """
    for name, plugin in _PLUGINS.items():
        if os.environ.get(name, "false").lower() == "true":
            raise TrainingError(
                f"the loop gives {plugin} to Accelerator(...), or sets {name}={os.environ[name]}, and "
                "with trainer Accelerate each worker holds the whole model: remove it, or use the trainer "
                'Torch(build_model, strategy="fsdp") or "deepspeed"'
            )
