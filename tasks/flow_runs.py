"""Prefect's record of runs that were killed: an open-source server never finds out by itself."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.runtime import flow_run

from training.paths import Home

log = logging.getLogger("evergreen.flow_runs")


@contextmanager
def told_apart(home: Home, recipe: str) -> Iterator[None]:
    """Tag the flow runs of the block, so that a later one of the same home and recipe recognises them."""
    from prefect import tags

    with tags(*_tags(home, recipe)):
        yield


def close_killed(home: Home, recipe: str) -> None:
    """Mark flow runs of this home and recipe that still are Running as Crashed.

    The caller holds the recipe's run lock, so their processes are gone. A server that does not answer is let be.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import State, StateType
    from prefect.states import Crashed

    active = filters.FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING])
    ours = filters.FlowRunFilter(
        tags=filters.FlowRunFilterTags(all_=_tags(home, recipe)),
        state=filters.FlowRunFilterState(type=active),
    )
    try:
        with get_client(sync_client=True) as client:
            for found in client.read_flow_runs(flow_run_filter=ours):
                if str(found.id) != str(flow_run.id):
                    gone: State[None] = Crashed(
                        message="Its process was gone when the next run began, which goes on with it."
                    )
                    client.set_flow_run_state(found.id, gone, force=True)
    except Exception as error:  # a record of the past must not stop a run
        log.debug("flow runs that were killed could not be marked: %s", error)


def _tags(home: Home, recipe: str) -> list[str]:
    return [f"evergreen-home:{home.identity}", f"recipe:{recipe}"]
