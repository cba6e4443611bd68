"""In: a model whose last run was held. Out: the acceptance of that run's data, recorded in the registry.

Fails with SettingError when the model is not registered, no data are held, or no reason is given.
"""

from tasks.registry.acceptance import accept_held
from tasks.registry.aliases import CHAMPION
from tasks.registry.lookup import check_known, find_alias
from tasks.trackers.mlflow_run import connect
from training.errors import SettingError
from training.profile_records import Acceptance
from training.storage.paths import Home


def accept(home: Home, model: str, why: str, tracking_uri: str | None = None) -> Acceptance:
    """Accept the data with which the last run of `model` was held."""
    if not why.strip():
        raise SettingError("--why: it is empty; say why these data are right, for who asks a year later")
    if tracking_uri is None:
        check_known(home, model)
    client = connect(tracking_uri, home)
    find_alias(client, model, CHAMPION)  # a run is held only against a champion
    return accept_held(client, home, model, why)
