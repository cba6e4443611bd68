"""Retries of a whole flow run: after a transient failure only, and out of the one budget for failures of its training.

How often a deployment's run is retried, and how long after its failure, is set where it is deployed (`prefect.yaml`),
through Prefect's own settings; a command is not retried. Prefect retries every failed run of a flow, so a run that
would fail again has to take its retries back.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from prefect.runtime import flow_run

from training.attempts.history import read_failures
from training.errors import classify
from training.storage.paths import RunPaths

log = logging.getLogger("evergreen.flow_retries")


@contextmanager
def retried_if_transient() -> Iterator[None]:
    """Let Prefect retry the flow run of the block when the error that leaves it may be gone later, else not."""
    try:
        yield
    except Exception as error:
        known = classify(error)
        if known is None or not known.transient or known.final:
            _take_retries_back()
        raise


def _take_retries_back() -> None:
    from prefect.client.orchestration import get_client
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    if run is None or not run.empirical_policy.retries:
        return
    try:
        with get_client(sync_client=True) as client:
            none = run.empirical_policy.model_copy(update={"retries": 0})
            client.update_flow_run(run.id, empirical_policy=none)
    except Exception as error:  # then the run is retried, and fails as before
        log.warning("Prefect will retry this run in vain: its retries could not be taken back (%s)", error)


def failures_of_this_flow_run(paths: RunPaths) -> int:
    """Failures of the training in earlier tries of this flow run, which count for its budget."""
    return len(read_failures(paths)) - _failures_before(str(flow_run.id), paths.root) if flow_run.id else 0


@cache  # a flow run is retried in the process that ran it first
def _failures_before(_flow_run: str, root: Path) -> int:
    return len(read_failures(RunPaths(root)))
