"""Starts a DeepSpeed engine: no compiled extension, no files, no messages but errors."""

import logging
import os
import warnings
from typing import Any

import torch  # noqa: TID253 - imported by processes that train, never by ones that plan or list
from torch import nn  # noqa: TID253

from training.trainers.ranks import Ranks

_BUCKET = 8 * 2**20  # numbers whose gradients are sent together: 32 MiB, while DeepSpeed's default takes 2 GB


def start_engine(
    model: nn.Module, optimizer: torch.optim.Optimizer, stage: int, clip_norm: float | None, ranks: Ranks
) -> Any:
    """A DeepSpeed engine for `model` and a new `optimizer` of its parameters, with a stage of ZeRO.

    torch.distributed must be initialised. From stage 1 on, the engine replaces the parameters in `optimizer` by this
    rank's part of them.
    """
    deepspeed = _library(ranks)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=_config(stage, clip_norm))
    return engine


def _library(ranks: Ranks) -> Any:
    """The imported library, set up for this rank's device."""
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    os.environ["DS_ACCELERATOR"] = ranks.device.type  # read by the first import
    # DeepSpeed computes on the device with this number.
    os.environ["LOCAL_RANK"] = str(ranks.device.index or 0)
    import deepspeed
    import deepspeed.ops

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # On CPUs, DeepSpeed would compile an extension for all-reduces in shared memory if it finds a C++ compiler. An
    # operation that is not in this table is not compiled; torch.distributed then does all communication.
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def _config(stage: int, clip_norm: float | None) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,  # not used: Evergreen gives the batches, and says when a step ends
        "gradient_accumulation_steps": 1,  # losses are divided by the rows of the whole step already
        "gradient_clipping": clip_norm or 0.0,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": False,  # gradients are added in the same order in each step
            "reduce_bucket_size": _BUCKET,
        },
        "zero_allow_untested_optimizer": True,  # torch's own optimizers, of which DeepSpeed lists only some
        "steps_per_print": None,
    }
