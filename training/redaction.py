"""Removes secrets from all text that is written: errors, logs, settings, MLflow, Prefect, files in a run's folder.

Three kinds of secrets are recognised: credentials in a URL, tokens and signatures in a URL's query, and values of
environment variables whose names end like those of secrets (PASSWORD, TOKEN, KEY, ...).
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, PlainSerializer, SecretStr

_CREDENTIALS = re.compile(r"(?<=://)[^\s/?#\"<>]+@")
# Passwords with / ? or # in them, up to the last @: SQLAlchemy takes them in the URL of a database, and elsewhere they
# follow a colon that no port follows.
_OF_DATABASE = re.compile(r"\b((?:postgres(?:ql)?|mysql|mariadb|mssql|oracle)(?:\+\w+)?://)[^\s\"<>]*@", re.I)
_WITH_SLASHES = re.compile(r"(?<=://)[^\s/?#\"<>@:\[]*:(?!\d+(?:[/?#,;.)']|$))[^\s\"<>]*@")
_QUERY = re.compile(
    r"(?<=[?&])([^\s?&=#]*(?:token|key|sig|signature|secret|password|credential)[^\s?&=#]*=)[^\s&#\"'<>)\]]+",
    re.I,
)
_SECRET_NAME = re.compile(r"(?:PASSWORD|PASSWD|SECRET|TOKEN|KEY|AUTH_STRING)$")
_SHORTEST = 8  # shorter values occur in ordinary text by chance
_HIDDEN = "***"


def redact(text: str) -> str:
    """`text` without secrets: credentials of URLs are removed, other secrets replaced by asterisks."""
    text = _WITH_SLASHES.sub("", _CREDENTIALS.sub("", _OF_DATABASE.sub(r"\1", text)))
    text = _QUERY.sub(rf"\1{_HIDDEN}", text)
    for secret in _of_environment():
        text = text.replace(secret, _HIDDEN)
    return text


def _of_environment() -> list[str]:
    """Values of environment variables that hold secrets, longest first; absolute paths of files are no secrets."""
    values = {
        value
        for name, value in os.environ.items()
        if _SECRET_NAME.search(name.upper()) and len(value) >= _SHORTEST and not Path(value).is_absolute()
    }
    return sorted(values, key=len, reverse=True)


def hide_credentials(overrides: dict[str, Any]) -> dict[str, Any]:
    """Wrap `tracking.uri` in nested overrides of the settings, so that Prefect's records show asterisks."""
    tracking = overrides.get("tracking")
    if not isinstance(tracking, dict) or not isinstance(tracking.get("uri"), str):
        return overrides
    return overrides | {"tracking": tracking | {"uri": SecretStr(tracking["uri"])}}


def hidden(url: str | None) -> str | SecretStr | None:
    """`url`, wrapped if it contains credentials, so that Prefect's records show asterisks."""
    return SecretStr(url) if url is not None and redact(url) != url else url


def shown(url: str | SecretStr | None) -> str | None:
    """Undo :func:`hidden`."""
    return url.get_secret_value() if isinstance(url, SecretStr) else url


def show_credentials(overrides: dict[str, Any]) -> dict[str, Any]:
    """Undo :func:`hide_credentials`: unwrap `tracking.uri` in nested overrides."""
    tracking = overrides.get("tracking")
    if not isinstance(tracking, dict) or not isinstance(tracking.get("uri"), SecretStr):
        return overrides
    return overrides | {"tracking": tracking | {"uri": tracking["uri"].get_secret_value()}}


# Text for people, from which secrets are removed in memory already: no code needs them.
Redacted = Annotated[str, AfterValidator(redact), PlainSerializer(redact)]
# URL that may contain credentials: complete in memory, without the credentials when written as JSON.
SecretUrl = Annotated[str, PlainSerializer(redact, return_type=str, when_used="json")]
