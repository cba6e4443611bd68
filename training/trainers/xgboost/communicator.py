"""Communication of XGBoost's workers: all workers join a tracker (rendezvous server) on the first worker."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from training.errors import StopRequestedError
from training.trainers.ranks import Ranks

_unfinished: list[
    Any
] = []  # trackers of failed trainings, kept referenced: deleting one would wait for the other workers


@contextmanager
def communicator(ranks: Ranks, timeout_s: int) -> Iterator[None]:
    """Within the block, XGBoost's collective operations span all workers.

    `timeout_s` (seconds) limits the start and the end of the communication, and each operation. The tracker listens
    only at the address by which the workers know the first worker.
    """
    if not ranks.distributed:
        yield
        return
    from xgboost import collective
    from xgboost.tracker import RabitTracker

    host = os.environ["MASTER_ADDR"]  # set in each worker by the rendezvous
    tracker, port = None, 0
    if ranks.is_first:
        tracker = RabitTracker(n_workers=ranks.world_size, host_ip=host, sortby="task", timeout=timeout_s)
        tracker.start()
        port = int(tracker.worker_args()["dmlc_tracker_port"])
    try:
        collective.init(
            dmlc_tracker_uri=host,
            dmlc_tracker_port=int(ranks.add_up(port)[0]),
            dmlc_task_id=f"{ranks.rank:06d}",  # sorted as text; this order determines the order of sums
            dmlc_timeout=timeout_s,
        )
        yield
    except StopRequestedError:  # raised on all workers
        collective.finalize()
        raise
    except BaseException:
        _unfinished.append(tracker)  # collective.finalize() would wait for workers that may have died
        raise
    collective.finalize()
    if tracker is not None:
        tracker.wait_for(timeout_s)
