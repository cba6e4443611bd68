"""Retries of a whole flow run: only after a transient failure, and within the failure budget of its training.

The number of retries of a deployment's run, and the delay before each, are Prefect settings in the deployment
(`prefect.yaml`); a run of the command line is not retried. Prefect retries every failed flow run, so a run that would
fail again sets its own number of retries to 0.
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
    """Let Prefect retry the flow run of the block only when the error that leaves the block is transient."""
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
    except Exception as error:  # then Prefect retries the run, which fails with the same error
        log.warning(
            "Prefect will retry this run without effect: its retries could not be cancelled (%s)", error
        )


def failures_of_this_flow_run(paths: RunPaths) -> int:
    """Number of training failures in earlier tries of this flow run; they count against its failure budget."""
    return len(read_failures(paths)) - _failures_before(str(flow_run.id), paths.root) if flow_run.id else 0


@cache  # in memory is enough: Prefect retries a flow run in the process that ran it first
def _failures_before(_flow_run: str, root: Path) -> int:
    return len(read_failures(RunPaths(root)))
