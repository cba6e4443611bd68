"""Entry point of a Ray Train worker: set up logs and stacks of this process, then run the job's trainer."""

import faulthandler
import multiprocessing.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from training.attempts.heartbeat import STACKS_SIGNAL
from training.attempts.job import TrainingJob
from training.attempts.log_relay import recorded
from training.ray_cluster.driver_link import node_run
from training.trainers.base import trainer_named
from training.trainers.ranks import Ranks


def run_ray_worker(config: dict[str, Any]) -> None:
    """Train as one worker; `config` has a :class:`TrainingJob` as JSON in `job`, and in `link` the driver's actor."""
    import ray

    ranks, node = Ranks.of_ray_worker(), ray.get_runtime_context().get_node_id()
    job = TrainingJob.model_validate_json(config["job"])
    with node_run(job, ranks, node, config["link"]) as here:
        here.paths.stacks.mkdir(parents=True, exist_ok=True)
        log_file = here.paths.logs / f"rank-{ranks.rank}.jsonl"
        with recorded(log_file), (here.paths.stacks / f"rank-{ranks.rank}.txt").open("w") as stacks:
            faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
            try:
                with _sockets_removed() if here.feed == "loader" else nullcontext():
                    trainer_named(here.settings.trainer).run_worker(here, ranks, node)
            finally:
                faulthandler.unregister(STACKS_SIGNAL)


@contextmanager
def _sockets_removed() -> Iterator[None]:
    """After the block, remove the folder in which this process's loader processes have sockets.

    A process that ends by itself removes this folder, but Ray kills its workers.
    """
    # Made before the loader processes, which then use the same folder.
    folder = multiprocessing.util.get_temp_dir()
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
