"""Secrets kept out of what is written down: errors, logs, settings, MLflow, Prefect, files beside a run.

Three kinds can be told by their looks: credentials in a URL, signatures in its query, and values of environment
variables whose names say what they are.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, PlainSerializer, SecretStr

_CREDENTIALS = re.compile(r"(?<=://)[^\s/?#\"<>]+@")
_QUERY = re.compile(
    r"(?<=[?&])([^\s?&=#]*(?:token|key|sig|signature|secret|password|credential)[^\s?&=#]*=)[^\s&#\"'<>)\]]+",
    re.I,
)
_SECRET_NAME = re.compile(r"(?:PASSWORD|PASSWD|SECRET|TOKEN|KEY|AUTH_STRING)$")
_SHORTEST = 8  # what is shorter stands in ordinary text by chance
_HIDDEN = "***"


def redact(text: str) -> str:
    """`text` without what must not be written down; a URL stays usable but for its credentials."""
    text = _QUERY.sub(rf"\1{_HIDDEN}", _CREDENTIALS.sub("", text))
    for secret in _of_environment():
        text = text.replace(secret, _HIDDEN)
    return text


def _of_environment() -> list[str]:
    """Values that belong to secrets, longest first; a file's path is none."""
    found = {
        value
        for name, value in os.environ.items()
        if _SECRET_NAME.search(name.upper()) and len(value) >= _SHORTEST and not Path(value).is_absolute()
    }
    return sorted(found, key=len, reverse=True)


def hide_credentials(overrides: dict[str, Any]) -> dict[str, Any]:
    """Nested overrides of the settings with `tracking.uri` wrapped, so that Prefect's records show asterisks."""
    tracking = overrides.get("tracking")
    if not isinstance(tracking, dict) or not isinstance(tracking.get("uri"), str):
        return overrides
    return overrides | {"tracking": tracking | {"uri": SecretStr(tracking["uri"])}}


def show_credentials(overrides: dict[str, Any]) -> dict[str, Any]:
    """The overrides that :func:`hide_credentials` was given."""
    tracking = overrides.get("tracking")
    if not isinstance(tracking, dict) or not isinstance(tracking.get("uri"), SecretStr):
        return overrides
    return overrides | {"tracking": tracking | {"uri": tracking["uri"].get_secret_value()}}


# A text for people, never needed whole.
Redacted = Annotated[str, AfterValidator(redact), PlainSerializer(redact)]
# A URL that may carry credentials: whole in memory, without them wherever it is written as JSON.
SecretUrl = Annotated[str, PlainSerializer(redact, return_type=str, when_used="json")]
