"""The flow that returns to the previous champion; the decision is recorded with its reason.

evergreen rollback digits --why "wrong on new cameras"
"""

from prefect import flow
from pydantic import SecretStr

from flows.local.finished_work import done, with_result
from flows.local.prefect_signals import sigterm_ends_flow
from tasks import rollback as step
from tasks.step import without_secrets
from training.redaction import shown
from training.storage.paths import home_to_write


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
        return done(
            step.rollback(str(home_to_write(for_run=False).root), model, why, shown(tracking_uri), to)
        )


def rolled_back(
    model: str, why: str = "", tracking_uri: str | SecretStr | None = None, to: str | None = None
) -> tuple[str, str]:
    """Run the flow; returns (from, to) also when the flow fails after the aliases were moved.

    Prefect's server may be away when the flow run ends; the rollback is done then.
    """
    return with_result(lambda: rollback(model, why, tracking_uri, to), f"{model}: the rollback")
