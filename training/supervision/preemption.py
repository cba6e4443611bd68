"""Preemption: requests a checkpoint while a node with workers, such as a spot instance, is being drained.

When the node goes away, Ray Train moves its workers to other nodes and does not count a failure. Ray Train's own
preemption notice for workers is a barrier over all workers, too expensive for each step. So the driver asks the
cluster instead.
"""

import logging
import threading
import time
from dataclasses import dataclass, field

from training.attempts.heartbeat import read_beats
from training.attempts.job import TrainingJob
from training.storage.files import write_text

log = logging.getLogger("evergreen.preemption")

_LOOK_S = 2.0


@dataclass
class PreemptionPoller:
    """Asks the cluster every `_LOOK_S` seconds whether a node with workers of this attempt is being drained.

    The question is asked in a thread of its own: while the cluster's head does not answer, a call of Ray blocks.
    """

    job: TrainingJob
    _looked: float = 0.0
    _asking: threading.Thread | None = None
    _known: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Begin to ask the cluster, if it is time."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S or (self._asking is not None and self._asking.is_alive()):
            return
        self._looked = now
        self._asking = threading.Thread(target=self._ask, name="evergreen-preemption", daemon=True)
        self._asking.start()

    def _ask(self) -> None:
        """Request one checkpoint for each draining node, through the run's file `save`."""
        ours = {beat.node for beat in read_beats(self.job.paths) if beat.attempt == self.job.attempt}
        for node in (set(_draining()) & ours) - self._known:
            self._known.add(node)
            log.warning("node %s is about to be taken away: saving a checkpoint", node[:12])
            write_text(self.job.paths.save, node)


def _draining() -> list[str]:
    """Ids of draining nodes; empty when the cluster does not answer, a failure that other checks detect."""
    from training.ray_cluster.patches import draining_nodes

    try:
        return draining_nodes()
    except Exception as error:
        log.debug("no word about draining nodes: %s", error)
        return []
