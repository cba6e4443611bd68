"""The guides' script with DeepSpeed on Ray Train (P17-deepspeed), written from their description.

`deepspeed.initialize` makes an engine with ZeRO stage 2 and the size of buckets that Evergreen sets; after each epoch a
validation, and one `ray.train.report` with the engine's checkpoint, of which each worker writes its part. AdamW is
fused, as in Evergreen.
"""

import os
from typing import Any

from benchmarks.baselines.guides_training import report_parts, resnet, train_prepared


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """What each worker runs."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    import deepspeed.ops
    import torch

    # As in Evergreen: without this line, DeepSpeed compiles an extension for all-reduces in shared memory if it finds a
    # C++ compiler, and the row would compare other things on a machine with a compiler. The row's note says so.
    deepspeed.ops.__compatible_ops__ = {}
    torch.set_num_threads(1)
    model = resnet()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(
            model.parameters(), lr=config["learning_rate"], weight_decay=1e-2, fused=True
        ),
        config={
            "train_micro_batch_size_per_gpu": config["batch_size_per_worker"],
            "zero_optimization": {"stage": 2, "overlap_comm": False, "reduce_bucket_size": 8 * 2**20},
            "zero_allow_untested_optimizer": True,
        },
    )

    def update(loss: Any) -> None:
        engine.backward(loss)
        engine.step()

    train_prepared(
        config,
        engine,
        update,
        lambda metrics: report_parts(lambda folder: engine.save_checkpoint(folder), metrics),
    )
