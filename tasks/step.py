"""A step of a flow: a Prefect task that is retried after transient errors only, and whose errors contain no secrets.

Prefect stores an error's text in the state of the task run, on its server; so secrets are redacted inside the task.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from training.errors import OutageError, StopRequestedError, causes, classify
from training.redaction import redact

P = ParamSpec("P")
R = TypeVar("R")


def worth_retrying(_task: Any, _run: Any, state: Any) -> bool:
    """Prefect's `retry_condition_fn`: whether the failed state's error is transient and may be gone at the retry."""
    error = state.result(raise_on_failure=False)
    known = classify(error) if isinstance(error, BaseException) else None
    return known is not None and known.transient and not isinstance(known, StopRequestedError | OutageError)


def step(
    name: str,
    retries: int = 0,
    pause_s: float = 1.0,
    retry_if: Callable[[Any, Any, Any], bool] = worth_retrying,
    **options: Any,
) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Decorator that makes a function a Prefect task without result cache.

    The task has up to `retries` retries; the delay before them starts at `pause_s` seconds and grows exponentially.
    """

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        @wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            with without_secrets():
                return function(*args, **kwargs)

        made: Task[P, R] = task(
            name=name,
            retries=retries,
            retry_delay_seconds=exponential_backoff(pause_s) if retries else None,
            retry_jitter_factor=0.5 if retries else None,
            retry_condition_fn=retry_if,
            cache_policy=NO_CACHE,
            **options,
        )(guarded)
        return made

    return decorate


@contextmanager
def without_secrets() -> Iterator[None]:
    """Redact secrets in the texts of an error that leaves the block, and of all errors that caused it."""
    try:
        yield
    except Exception as error:
        for cause in causes(error):
            cause.args = tuple(redact(part) if isinstance(part, str) else part for part in cause.args)
        raise
