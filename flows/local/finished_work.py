"""The result of a flow whose work is done, also when Prefect does not record the end of the flow run."""

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from training.redaction import redact

log = logging.getLogger("evergreen.flows")
T = TypeVar("T")
_results: ContextVar[list[Any] | None] = ContextVar("results", default=None)


def done(result: T) -> T:
    """Note, at the end of a flow, that its work is done; returns `result`, which the flow returns."""
    if (results := _results.get()) is not None:
        results.append(result)
    return result


def with_result(flow: Callable[[], T], work: str) -> T:
    """Call `flow`, which calls :func:`done` when its work is done; returns the result.

    If the flow fails afterwards, such as with Prefect's server away at the end of the flow run, the failure is logged
    with the noun `work`, and the result is returned. Any earlier error is raised.
    """
    results: list[T] = []
    token = _results.set(results)
    try:
        return flow()
    except Exception as error:
        if not results:
            raise
        log.warning("%s is done, but Prefect did not record its end: %s", work, redact(str(error)))
        return results[0]
    finally:
        _results.reset(token)
