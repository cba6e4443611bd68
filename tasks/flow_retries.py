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
from typing import TYPE_CHECKING, Any

from prefect.runtime import flow_run

from training.attempts.history import read_failures
from training.errors import classify
from training.storage.paths import RunPaths

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas import FlowRun

log = logging.getLogger("evergreen.flow_retries")


@contextmanager
def retried_if_transient() -> Iterator[None]:
    """Let Prefect retry the flow run of the block only when the error that leaves the block is transient."""
    _give_retries_back()
    try:
        yield
    except Exception as error:
        known = classify(error)
        if known is None or not known.transient or known.final:
            _take_retries_back()
        raise


def _give_retries_back() -> None:
    """Allow retries again in a run that a person has started again after its retries were used up or taken."""
    flow, run = _current()
    allowed = flow.retries if flow is not None else 0
    if run is None or not allowed or run.empirical_policy.retries is None:
        return
    tries = run.run_count - 1
    if tries > run.empirical_policy.retries:  # so Prefect has not begun this try by itself
        _set_retries(run, tries + allowed, "its retries could not be allowed again")


def _take_retries_back() -> None:
    _, run = _current()
    if run is not None and run.empirical_policy.retries:
        # Otherwise Prefect retries the run, which fails with the same error.
        _set_retries(
            run, 0, "Prefect will retry this run without effect, as its retries could not be cancelled"
        )


def _current() -> "tuple[Flow[..., Any] | None, FlowRun | None]":
    """The flow of the block and its run; None outside of a flow run."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    return (None, None) if context is None else (context.flow, context.flow_run)


def _set_retries(run: "FlowRun", retries: int, otherwise: str) -> None:
    """Change the number of retries of a flow run; log `otherwise` if Prefect's server refuses."""
    from prefect.client.orchestration import get_client

    policy = run.empirical_policy.model_copy(update={"retries": retries})
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(run.id, empirical_policy=policy)
    except Exception as error:
        log.warning("%s (%s)", otherwise, error)
    else:
        run.empirical_policy = policy


def failures_of_this_flow_run(paths: RunPaths) -> int:
    """Number of training failures in earlier tries of this flow run; they count against its failure budget."""
    return len(read_failures(paths)) - _failures_before(str(flow_run.id), paths.root) if flow_run.id else 0


@cache  # in memory is enough: Prefect retries a flow run in the process that ran it first
def _failures_before(_flow_run: str, root: Path) -> int:
    return len(read_failures(RunPaths(root)))
