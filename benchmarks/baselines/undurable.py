"""Evergreen's loop without its durability (P2): no checkpoints, no heartbeats, no metric points.

Two things remain: one checkpoint at the end, because the finished model is made from it, and one metric point per
epoch, from which the speed is computed.
"""

from typing import Any


def run_ray_worker(config: dict[str, Any]) -> None:
    """Entry point of a Ray Train worker, in place of `training.trainers.torch.worker.run_ray_worker`."""
    from training.attempts.heartbeat import Heartbeat
    from training.attempts.metrics import MetricsFile
    from training.ray_cluster.ray_worker import run_ray_worker as run
    from training.trainers.network.progress import Progress

    append, save = MetricsFile.append, Progress._save

    def append_epochs(self: Any, step: int, epoch: int, values: dict[str, float]) -> None:
        if "validation/loss" in values:
            append(self, step, epoch, values)

    def save_last(self: Any, position: Any, score: Any, sums: Any) -> None:
        if position.step == self.total_steps:
            save(self, position, score, sums)

    Heartbeat.beat = lambda *_: None  # type: ignore[method-assign]
    MetricsFile.append = append_epochs  # type: ignore[method-assign, assignment]
    Progress._save = save_last  # type: ignore[method-assign, assignment]
    run(config)
