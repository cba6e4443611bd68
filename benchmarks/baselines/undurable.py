"""Evergreen's loop with all that makes it durable taken out (P2): no checkpoints, no heartbeats, no metric points.

What is left is one checkpoint at the very end, as the finished model is made of it, and one point an epoch, by which
speed is told.
"""

from typing import Any


def run_ray_worker(config: dict[str, Any]) -> None:
    """Entry of a Ray Train worker in place of `training.trainers.torch.worker.run_ray_worker`."""
    from training.attempts.heartbeat import Heartbeat
    from training.attempts.metrics import MetricsFile
    from training.trainers.torch.loop import Loop
    from training.trainers.torch.worker import run_ray_worker as run

    append, save = MetricsFile.append, Loop._save

    def append_epochs(self: Any, step: int, epoch: int, values: dict[str, float]) -> None:
        if "validation/loss" in values:
            append(self, step, epoch, values)

    def save_last(self: Any, position: Any, score: Any, sums: Any) -> None:
        if position.step == self.total_steps:
            save(self, position, score, sums)

    Heartbeat.beat = lambda *_: None  # type: ignore[method-assign]
    MetricsFile.append = append_epochs  # type: ignore[method-assign]
    Loop._save = save_last  # type: ignore[method-assign, assignment]
    run(config)
