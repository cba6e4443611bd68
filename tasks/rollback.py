"""In: a registered model. Out: its champion alias on the previous version, once that version is known to load.

Fails with SettingError when there is no version to return to, and with ResourceError when the home was moved.
"""

import logging
from pathlib import Path

from tasks.registry.aliases import roll_back
from tasks.registry.lookup import check_can_return
from tasks.step import step
from tasks.trackers.embedded_store import check_not_moved
from tasks.trackers.mlflow_run import connect
from training.storage.paths import Home

log = logging.getLogger("evergreen.rollback")


# No retries: a retry of a rollback that was done would swap the two aliases back.
@step("rollback")
def rollback(home: str, model: str, why: str = "", tracking_uri: str | None = None) -> tuple[str, str]:
    """Swap the aliases champion and previous; returns the champion's version numbers (from, to)."""
    place = Home(Path(home))
    client = connect(tracking_uri, place)
    if tracking_uri is None:
        check_not_moved(place)
    check_can_return(client, model)
    before, now = roll_back(client, place, model, why)
    log.info(
        "%s: champion moved from version %s back to %s%s", model, before, now, f" ({why})" if why else ""
    )
    return before, now
