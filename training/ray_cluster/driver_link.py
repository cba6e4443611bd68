"""The link between the driver and workers that share no disk with it (`storage.url`): an actor beside the driver.

A thread of each worker calls the actor a few times a second, see :mod:`training.attempts.mirror`. When the driver dies,
Ray ends the actor, and the fence on the worker's node is closed: the worker can't write any more.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.attempts.heartbeat import Heartbeat
from training.attempts.job import TrainingJob
from training.attempts.mirror import CLOSED, DriverSide, Outbox, Reply
from training.ray_cluster.node_caches import in_use, node_cache
from training.ray_cluster.stored_datasets import fetch, folder_in
from training.ray_cluster.stored_initial_weights import fetch_initial
from training.records import DatasetVersion
from training.storage.files import write_text
from training.storage.objects.base import open_store
from training.storage.scratch import scratch_folder
from training.trainers.long_work import LongWork
from training.trainers.ranks import Ranks

log = logging.getLogger("evergreen.link")

_EVERY_S = 0.2


@contextmanager
def driver_link(job: TrainingJob) -> Iterator[Any]:
    """Within the block, an actor beside the driver serves the job's run; yields its handle, or None without a store."""
    if job.settings.storage.url is None:
        yield None
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor_class: Any = ray.remote(DriverSide)
    actor = actor_class.options(num_cpus=0, scheduling_strategy=here).remote(str(job.paths.root))
    try:
        yield actor
    finally:
        with suppress(Exception):  # Ray may have died; then the actor has died, too
            ray.kill(actor)


@contextmanager
def node_run(job: TrainingJob, ranks: Ranks, node: str, actor: Any) -> Iterator[TrainingJob]:
    """Within the block, the job in a folder on this node, with its dataset; yields `job` itself when `actor` is None.

    After the block, the folder is removed; folders that killed workers left on this node are removed first.
    """
    if actor is None:
        yield job
        return
    import ray

    with scratch_folder("worker") as folder, ExitStack() as held:
        root = folder / job.paths.root.name
        files, fence = ray.get(actor.begin.remote(ranks.rank, job.attempt, job.driver))
        _write(files, root)
        local = job.model_copy(update={"root": str(root)})
        with _Link(actor, Outbox(root, ranks.rank, fence)).running():
            local = _with_dataset(local, ranks, node, held)
            # The worker reads how far the attempts before came, from the heartbeats that its own would overwrite.
            _write({name: content for name, content in files.items() if name.startswith("beats/")}, root)
            yield local


def _with_dataset(job: TrainingJob, ranks: Ranks, node: str, held: ExitStack) -> TrainingJob:
    """Download dataset and initial weights to this node. Heartbeats go on meanwhile, as this may take hours.

    The dataset stays in the node's cache at least until `held` is closed.
    """
    url = job.settings.storage.url
    assert url is not None
    heartbeat = Heartbeat(job.paths.beats / f"rank-{ranks.rank}.json", job.attempt, ranks.rank, node)
    heartbeat.beat(0)
    long_work = LongWork(ranks, heartbeat, job.settings.failure.collective_timeout_s)

    def work() -> DatasetVersion:
        cache, store = node_cache(job.settings.storage.node_cache), open_store(url)
        held.enter_context(in_use(folder_in(cache, job.dataset)))
        fetch_initial(job, store, heartbeat.add_moved)
        return fetch(job.dataset, store, cache, heartbeat.add_moved)

    with heartbeat.kept_beating(0):
        version = long_work.on_all(work)
    return job.model_copy(update={"dataset": version})


def _write(files: dict[str, bytes], root: Path) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


@dataclass
class _Link:
    """Calls the driver's actor from a thread of a worker."""

    actor: Any
    outbox: Outbox
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, name="evergreen-link", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _run(self) -> None:
        try:
            while not self._ended.wait(_EVERY_S):
                self._exchange()
            self._exchange()  # what was written last
        except Exception as error:
            log.warning("the driver does not answer any more (%s: %s)", type(error).__name__, error)
            write_text(self.outbox.root / "fence", CLOSED, durable=False)

    def _exchange(self) -> None:
        import ray

        outbox = self.outbox
        reply: Reply = ray.get(self.actor.exchange.remote(outbox.rank, outbox.changes(), outbox.fence))
        outbox.apply_reply(reply)
