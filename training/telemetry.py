"""Reports of use that libraries send to their makers are off, unless the user has set the library's variable."""

import os
from collections.abc import MutableMapping

OFF = {
    "DO_NOT_TRACK": "1",  # Prefect's client and Hugging Face's hub
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_ERROR_REPORTING": "false",
}


def switch_off(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables in `environment`, by default in that of this process and of the processes that it starts."""
    for name, value in OFF.items():
        environment.setdefault(name, value)
