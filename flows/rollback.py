"""The flow that returns to the previous champion; the decision is recorded with its reason.

evergreen rollback digits --why "wrong on new cameras"
"""

import logging

from prefect import flow
from pydantic import SecretStr

from flows.local.prefect_signals import sigterm_ends_flow
from tasks import rollback as step
from tasks.step import without_secrets
from training.redaction import redact, shown
from training.storage.paths import home

log = logging.getLogger("evergreen.rollback")
_made: list[tuple[str, str]] = []


# No retries, also where Prefect's settings give flows some: a retry of a rollback that was done would fail.
@flow(name="rollback", flow_run_name="rollback-{model}", retries=0)
def rollback(
    model: str, why: str = "", tracking_uri: str | SecretStr | None = None, to: str | None = None
) -> tuple[str, str]:
    """Point the champion alias of a model to the version before, or to version `to`; returns the numbers (from, to).

    Args:
        model: Name of the registered model, by default its recipe's.
        why: Reason, for the record.
        tracking_uri: MLflow tracking URI; empty: the store under EVERGREEN_HOME.
        to: Number of a version that was champion; empty: the champion before.
    """
    with sigterm_ends_flow(), without_secrets():
        moved = step.rollback(str(home(for_run=False).root), model, why, shown(tracking_uri), to)
    _made[:] = [moved]
    return moved


def rolled_back(
    model: str, why: str = "", tracking_uri: str | SecretStr | None = None, to: str | None = None
) -> tuple[str, str]:
    """Run the flow; returns (from, to) also when the flow fails after the aliases were moved.

    Prefect's server may be away when the flow run ends; the rollback is done then.
    """
    _made.clear()
    try:
        return rollback(model, why, tracking_uri, to)
    except Exception as error:
        if not _made:
            raise
        log.warning(
            "%s: the rollback is done, but Prefect did not record its end: %s", model, redact(str(error))
        )
        return _made[0]
