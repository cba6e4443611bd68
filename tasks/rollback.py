"""In: a registered model. Out: its champion alias on the previous version, once that version is known to load.

Fails with SettingError when there is no version to return to, and with ResourceError when the home was moved.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.inference.changed_rows import function_of
from tasks.registry.aliases import version_tags
from tasks.registry.lookup import check_can_return
from tasks.registry.rollback import roll_back
from tasks.step import step
from tasks.trackers.embedded_store import check_not_moved
from tasks.trackers.mlflow_run import connect
from training.errors import EvergreenError
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.rollback")


# No retries: a retry of a rollback that was done would fail, as the version before was rolled back.
@step("rollback")
def rollback(
    home: str, model: str, why: str = "", tracking_uri: str | None = None, to: str | None = None
) -> tuple[str, str]:
    """Make version `to`, by default the champion before, champion; returns the champion's version numbers (from, to).

    Both numbers are equal when `to` is champion already.
    """
    home_paths = Home(Path(home))
    client = connect(tracking_uri, home_paths)
    if tracking_uri is None:
        check_not_moved(home_paths)
    check_can_return(client, model, to)
    before, now = roll_back(client, home_paths, model, why, to)
    _warn_without_function(client, home_paths, model, now)
    if before == now:
        log.info("%s: version %s is champion already", model, now)
    else:
        log.info(
            "%s: champion moved from version %s back to %s%s", model, before, now, f" ({why})" if why else ""
        )
    return before, now


def _warn_without_function(client: "MlflowClient", home: Home, model: str, number: str) -> None:
    """Log a warning if `evergreen predict` could not use the version here: without its recipe's `transform_rows`."""
    try:
        function_of(home, version_tags(client, model, number), f"model {model} version {number}")
    except EvergreenError as error:
        log.warning("%s", error)
    except Exception as error:  # the rollback is done: a server that is away must not make it look failed
        log.debug("the tags of version %s can't be read: %s", number, error)
