"""The ranks that write a checkpoint together."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training.errors import PeerError

_LONGEST = 500  # characters of an error's text


def _alone(text: str) -> list[str]:
    return [text]


@dataclass(frozen=True)
class Writers:
    """The ranks that write a checkpoint together; one rank alone unless the state is sharded.

    `exchange` sends a text to all ranks and returns the texts of all ranks. Only the threads that write checkpoints may
    call `exchange`. `token` names this group of workers in names of files: the number of its attempt, the number of the
    group, and a random text.
    """

    rank: int = 0
    count: int = 1
    exchange: Callable[[str], list[str]] = _alone
    token: str = ""

    @property
    def is_first(self) -> bool:
        """Whether this rank publishes the checkpoint."""
        return self.rank == 0

    def share(self, work: Callable[[], Any]) -> list[Any]:
        """Run `work` on each rank, and return the results of all ranks, which must be JSON, in the order of ranks.

        If `work` fails on a rank, this rank raises the error, and the others raise :class:`PeerError`.
        """
        try:
            mine = work()
        except BaseException as error:
            self.exchange(json.dumps({"error": f"{type(error).__name__}: {error}"[:_LONGEST]}))
            raise
        reports = [json.loads(text) for text in self.exchange(json.dumps({"result": mine}))]
        for rank, report in enumerate(reports):
            if "error" in report:
                raise PeerError(f"worker {rank} did not write its part of a checkpoint: {report['error']}")
        return [report["result"] for report in reports]
