"""Nodes that are about to be taken away, as on spot instances: a checkpoint is saved while they are still there.

Ray Train moves the workers by itself when such a node goes, and does not count it as a failure. Its own notice to the
workers is a barrier over all of them, too dear for each step; the driver can ask the cluster as well.
"""

import logging
import time
from dataclasses import dataclass, field

from training.attempts.heartbeat import read_beats
from training.attempts.job import TrainingJob
from training.storage.files import write_text

log = logging.getLogger("evergreen.preemption")

_LOOK_S = 2.0


@dataclass
class PreemptionPoller:
    """Asks the cluster every few seconds whether a node with workers of ours is to be drained."""

    job: TrainingJob
    _looked: float = 0.0
    _known: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Have a checkpoint saved, once for each node that was announced."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        ours = {beat.node for beat in read_beats(self.job.paths) if beat.attempt == self.job.attempt}
        for node in (set(_draining()) & ours) - self._known:
            self._known.add(node)
            log.warning("node %s is about to be taken away: saving a checkpoint", node[:12])
            write_text(self.job.paths.save, node)


def _draining() -> list[str]:
    """Ids of nodes that are being drained; none when the cluster does not answer, which others notice."""
    from ray._private.state import state  # the only place where a driver learns of it

    try:
        return list(state.get_draining_nodes())
    except Exception as error:
        log.debug("no word about draining nodes: %s", error)
        return []
