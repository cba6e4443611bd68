"""The guides' script with FSDP2 on Ray Train (P17-fsdp), written from their description.

`fully_shard` divides each block of the model and the rest among the workers; after each epoch a validation, and one
`ray.train.report` with a checkpoint of weights and optimizer, of which torch's distributed checkpoint writes each
worker's part.
"""

from typing import Any

from benchmarks.baselines.guides_training import report_parts, resnet, train_prepared


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
    for part in (model.layer1, model.layer2, model.layer3, model.layer4, model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"], weight_decay=1e-2)

    def update(loss: Any) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def save(folder: str) -> None:
        weights, state = get_state_dict(model, optimizer)
        save_parts({"model": weights, "optimizer": state}, checkpoint_id=folder)

    train_prepared(config, model, update, lambda metrics: report_parts(save, metrics))
