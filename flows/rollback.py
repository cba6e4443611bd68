"""The flow that returns to the previous champion; the decision is recorded with its reason.

evergreen rollback digits --why "wrong on new cameras"
"""

from prefect import flow

from flows.local.prefect_signals import sigterm_ends_flow
from tasks import rollback as step
from tasks.step import without_secrets
from training.storage.paths import home


@flow(name="rollback", flow_run_name="rollback-{model}")
def rollback(model: str, why: str = "", tracking_uri: str | None = None) -> tuple[str, str]:
    """Point the champion alias of a model to the version before; returns the version numbers (from, to).

    Args:
        model: Name of the registered model, by default its recipe's.
        why: Reason, for the record.
        tracking_uri: MLflow tracking URI; empty: the store under EVERGREEN_HOME.
    """
    with sigterm_ends_flow(), without_secrets():
        return step.rollback(str(home().root), model, why, tracking_uri)
