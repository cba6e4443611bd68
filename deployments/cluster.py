"""The build step of `deployments/cluster.yaml`: the addresses of the cluster, the storage and the tracking server.

All values are taken from the environment of `prefect deploy`; values that a run could not use are refused there.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from training.errors import EvergreenError, SettingError
from training.ray_cluster.cluster import check_answers
from training.redaction import redact
from training.storage.paths import HOME_VARIABLE, home_to_write

ADDRESS_VARIABLE = "EVERGREEN_RAY_ADDRESS"
TRACKING_VARIABLE = "EVERGREEN_TRACKING_URI"

_NEEDED = {
    ADDRESS_VARIABLE: "host:port of the Ray head, such as 10.0.0.1:6379",
    TRACKING_VARIABLE: "the MLflow server, such as http://10.0.0.1:5000",
    HOME_VARIABLE: "a folder that all machines of the cluster share at the same path, such as /shared/evergreen",
}


def place() -> dict[str, str]:
    """Outputs `address`, `tracking_uri`, `home` and `checkout` for the templates of the deployment file.

    Exits with a message, before anything is deployed, when a variable is unset, the folder is not writable, the
    tracking server has no http address, or no cluster answers.
    """
    try:
        return _placed(os.environ)
    except EvergreenError as error:
        # Prefect would show any other exception as a traceback, with the message in the middle.
        raise SystemExit(f"not deployed: {error}") from None


def _placed(environment: Mapping[str, str]) -> dict[str, str]:
    if missing := [name for name in _NEEDED if not environment.get(name)]:
        wanted = "".join(f"\n  {name}: {_NEEDED[name]}" for name in missing)
        raise SettingError(
            f"a run on the cluster needs {len(missing)} more environment variables. Export{wanted}"
        )
    if not environment[TRACKING_VARIABLE].startswith(("http://", "https://")):
        raise SettingError(
            f"{TRACKING_VARIABLE}: {environment[TRACKING_VARIABLE]!r} is not the address of a server. With a "
            "database or a file, the models would be stored on one machine only: start `mlflow server`, and set "
            "its http:// address."
        )
    if redact(environment[TRACKING_VARIABLE]) != environment[TRACKING_VARIABLE]:
        raise SettingError(
            f"{TRACKING_VARIABLE}: it contains credentials, which Prefect would show with the deployment. Set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD for the process that runs the worker instead."
        )
    check_answers(environment[ADDRESS_VARIABLE])
    return {
        "address": environment[ADDRESS_VARIABLE],
        "tracking_uri": environment[TRACKING_VARIABLE],
        "home": str(home_to_write().root),
        "checkout": str(Path.cwd()),
    }
