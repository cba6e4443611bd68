"""Failures of Prefect's server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient


@contextmanager
def server_fails_at_the_end() -> Iterator[list[Any]]:
    """Let the server go away when a flow run is to be Completed; yields the states that were refused."""
    real, refused = SyncPrefectClient.set_flow_run_state, list[Any]()

    def failing(self: Any, run: Any, state: Any, *given: Any, **options: Any) -> Any:
        if state.is_completed() or refused:
            refused.append(state)
            raise ConnectionError("the server went away")
        return real(self, run, state, *given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SyncPrefectClient, "set_flow_run_state", failing)
        yield refused
