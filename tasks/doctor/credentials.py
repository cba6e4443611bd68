"""Checks of credentials: whether Prefect's server, MLflow's server and the object store accept those of this process.

A check names the environment variables that hold the credentials, and says whether they are set; it never shows their
values.
"""

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

from tasks.doctor import Check
from tasks.trackers.mlflow_store import connect
from training.errors import EvergreenError
from training.redaction import redact
from training.storage.objects.base import check_store, open_store
from training.storage.paths import Home

PREFECT_VARIABLES = ("PREFECT_API_AUTH_STRING", "PREFECT_API_KEY")
_MLFLOW_VARIABLES = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
_STORE_VARIABLES = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "abfs": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
}


def state_of(variables: tuple[str, ...]) -> str:
    """Which of the environment variables are set, without their values."""
    return ", ".join(f"{name} is {'set' if os.environ.get(name) else 'not set'}" for name in variables)


def mlflow_credentials_check(uri: str, home: Home) -> Check:
    """Check that MLflow's server accepts the credentials for a request that needs them."""
    name, shown = "MLflow credentials", redact(uri)
    before = state_of(_MLFLOW_VARIABLES)  # `connect` sets the variables from a URI with a user and a password
    try:
        connect(uri, home)
    except EvergreenError as error:
        remedy = (
            "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, to what the server "
            f"knows ({before})."
        )
        if error.transient:
            remedy = "Read the server's log, and run `evergreen doctor` again."
        return Check(name=name, ok=False, found=str(error), remedy=remedy)
    return Check(name=name, ok=True, found=f"{shown} accepts the credentials")


def object_store_checks(url: str | None) -> Iterator[Check]:
    """Check every kind of access to the object store at `url` that a run needs; nothing without `url`."""
    if url is None:
        return
    name = "object store"
    try:
        check_store(open_store(url))
    except EvergreenError as error:
        variables = _STORE_VARIABLES.get(urlsplit(url).scheme, ())
        remedy = f"Credentials are read from the environment: {state_of(variables)}." if variables else ""
        yield Check(name=name, ok=False, found=str(error), remedy=remedy or "Correct --storage-url.")
    else:
        yield Check(name=name, ok=True, found=f"{url} lists, reads, creates and deletes objects")
