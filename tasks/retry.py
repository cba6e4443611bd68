"""Which failures Prefect retries: the transient ones, as :mod:`training.errors` classifies them, and no others."""

from typing import Any

from training.errors import StopRequestedError, classify


def worth_retrying(_task: Any, _run: Any, state: Any) -> bool:
    """Prefect's `retry_condition_fn`: whether the failed state's error may go away by itself."""
    error = state.result(raise_on_failure=False)
    known = classify(error) if isinstance(error, BaseException) else None
    return known is not None and known.transient and not isinstance(known, StopRequestedError)
