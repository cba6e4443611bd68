"""The guides' script with FSDP2 on Ray Train (P17-fsdp), written from their description.

`fully_shard` gathers each block with a million weights or more by itself, and the rest of the model at once: the units
that Evergreen chooses. After each epoch a validation, and one `ray.train.report` with a checkpoint of weights and
optimizer, of which torch's distributed checkpoint writes each worker's part. AdamW is fused, as in Evergreen.
"""

from typing import Any

from benchmarks.baselines.guides_training import report_parts, resnet, train_prepared


def units(model: Any) -> tuple[Any, ...]:
    """The blocks of a ResNet-18 that have a million weights or more."""
    return model.layer3[1], model.layer4[0], model.layer4[1]


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """What each worker runs."""
    import ray.train
    import torch
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.checkpoint.state_dict_saver import save as save_parts
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    mesh, model = init_device_mesh("cpu", (ray.train.get_context().get_world_size(),)), resnet()
    for part in (*units(model), model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config["learning_rate"], weight_decay=1e-2, fused=True
    )

    def update(loss: Any) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def save(folder: str) -> None:
        weights, state = get_state_dict(model, optimizer)
        save_parts({"model": weights, "optimizer": state}, checkpoint_id=folder)

    train_prepared(config, model, update, lambda metrics: report_parts(save, metrics))
