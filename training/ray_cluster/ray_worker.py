"""Entry point of a Ray Train worker: set up logs and stacks of this process, then run the job's trainer."""

import faulthandler
from typing import Any

from training.attempts.heartbeat import STACKS_SIGNAL
from training.attempts.job import TrainingJob
from training.attempts.log_relay import recorded
from training.trainers.base import trainer_named
from training.trainers.ranks import Ranks


def run_ray_worker(config: dict[str, Any]) -> None:
    """Train as one worker; `config["job"]` is a :class:`TrainingJob` as JSON."""
    import ray

    job = TrainingJob.model_validate_json(config["job"])
    ranks = Ranks.of_ray_worker()
    job.paths.stacks.mkdir(parents=True, exist_ok=True)
    log_file = job.paths.logs / f"rank-{ranks.rank}.jsonl"
    with recorded(log_file), (job.paths.stacks / f"rank-{ranks.rank}.txt").open("w") as stacks:
        faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
        try:
            node = ray.get_runtime_context().get_node_id()
            trainer_named(job.settings.trainer).run_worker(job, ranks, node)
        finally:
            faulthandler.unregister(STACKS_SIGNAL)
