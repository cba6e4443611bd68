"""Find and remove claims of the registry lock that killed processes of this home left.

In: the plans of some runs, which name registry and model. Out: claims of processes of this home and machine that have
ended. Whether a claim of another home is abandoned can be known only after the duration of a lease: a process that
waits for the lock watches the claim for that time.
"""

import logging
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from tasks.registry.lock import LOCK_TAG, read_claims, registry_lock
from tasks.trackers.embedded_store import store_file
from tasks.trackers.mlflow_run import connect_once
from training.errors import EvergreenError
from training.plan import RunPlan
from training.storage.paths import Home

log = logging.getLogger("evergreen.retention")


class AbandonedClaim(NamedTuple):
    """A claim whose process has ended; `plan` is the plan of a run that uses the model."""

    plan: RunPlan
    tag: str
    holder: str


def abandoned_claims(plans: Iterable[RunPlan]) -> Iterator[AbandonedClaim]:
    """Each abandoned claim once. A registry that does not answer yields no claims, and a warning is logged."""
    from mlflow.exceptions import MlflowException

    models = {(plan.settings.tracking.uri, plan.model): plan for plan in plans}
    for (uri, model), plan in models.items():
        home = Home(Path(plan.home))
        if uri is None and not store_file(home).is_file():  # connecting would create the store
            continue
        try:
            claims = read_claims(connect_once(plan), model)
        except EvergreenError as error:
            log.warning("model %s: its registry could not be searched for abandoned locks (%s)", model, error)
            continue
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                log.warning(
                    "model %s: its registry could not be searched for abandoned locks (%s)", model, error
                )
            continue
        here = (home.identity, socket.gethostname())
        for token, claim in claims.items():
            gone = claim.pid is not None and not psutil.pid_exists(claim.pid)
            if claim.turn is None and (claim.home, claim.host) == here and gone:
                yield AbandonedClaim(plan, LOCK_TAG + token, claim.holder)


def remove_claim(claim: AbandonedClaim) -> None:
    """End the claim by acquiring and releasing the lock: a process that acquires the lock ends abandoned claims.

    Raises :class:`training.errors.TransientError` when other processes hold the lock for over ten minutes.
    """
    home = Home(Path(claim.plan.home))
    with registry_lock(connect_once(claim.plan), home, claim.plan.model):
        pass
