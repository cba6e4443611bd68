"""Work of single workers that may take longer than the timeout of collective operations: an upload of many GB.

A collective operation fails when a rank does not take part within `failure.collective_timeout_s`. So the ranks do not
wait for such work in one operation: once a second, an all-reduce tells them whether the work is done on all ranks.
The work fails when no rank has moved a byte during that timeout.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from training.attempts.heartbeat import Heartbeat
from training.errors import TransientError
from training.trainers.ranks import Ranks

T = TypeVar("T")

_ASK_S = 1.0


@dataclass(frozen=True)
class LongWork:
    """Runs work of ranks and waits until it has ended on all of them; `limit_s` limits the time without progress.

    Progress is `heartbeat.moved`: the bytes that a rank reads, writes and transfers.
    """

    ranks: Ranks
    heartbeat: Heartbeat
    limit_s: float

    def on_first(self, work: Callable[[], None]) -> None:
        """Run `work` on the first rank. All ranks call this method, which returns once the work has ended."""
        self.on_all(work if self.ranks.is_first else _nothing)

    def on_all(self, work: Callable[[], T]) -> T:
        """Run `work` on each rank, in a thread; returns once it has ended on all ranks.

        All ranks call this method; `work` must not use collective operations.

        Raises the work's error on the rank where it failed, and :class:`TransientError` on all ranks when no rank has
        moved a byte for `limit_s` seconds.
        """
        if not self.ranks.distributed:
            return work()
        outcome: Future[T] = Future()
        thread = threading.Thread(target=_run, args=(work, outcome), name="evergreen-long-work", daemon=True)
        thread.start()
        moved, since = 0.0, time.monotonic()
        while True:
            thread.join(_ASK_S)
            late = float(time.monotonic() - since > self.limit_s)
            unfinished, moved_now, late = self.ranks.add_up(
                float(thread.is_alive()), float(self.heartbeat.moved), late
            )
            if not unfinished:
                return outcome.result()
            if moved_now != moved:
                moved, since = moved_now, time.monotonic()
            elif late:
                raise TransientError(
                    f"no worker has read, written or transferred a byte of a checkpoint, a dataset or the model for "
                    f"{self.limit_s:.0f} s. Look at the disks and at storage.url; if they are only slow, raise "
                    "failure.collective_timeout_s."
                )


def _run(work: Callable[[], T], outcome: "Future[T]") -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:  # outcome.result() raises it in the training thread
        outcome.set_exception(error)


def _nothing() -> None:
    pass
