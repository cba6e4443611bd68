"""The Prefect server that the user has configured: its address, the origin of the address, whether it answers."""

import os
from json import JSONDecodeError
from typing import NamedTuple

from training.errors import SettingError, TransientError, classify

_VARIABLE = "PREFECT_API_URL"
_TIMEOUT_S = 10.0


class Configured(NamedTuple):
    """A server's address, where the address is set (`origin`), and how to remove that setting (`unset`)."""

    url: str
    origin: str
    unset: str

    @property
    def remedy(self) -> str:
        """What to do when the server does not answer."""
        return (
            f"Start that server (`prefect server start`), correct the address, or remove the setting ({self.unset}): "
            "a local run then starts its own server."
        )


def configured_server() -> Configured | None:
    """The server that Prefect's own settings name; None if there is none, so that a local run starts a server."""
    from prefect.context import get_settings_context
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    if not url:
        return None
    if os.environ.get(_VARIABLE) == url:
        return Configured(url, f"environment variable {_VARIABLE}", f"unset {_VARIABLE}")
    profile = get_settings_context().profile
    if profile.settings.get(PREFECT_API_URL) == url:
        origin = f"profile {profile.name!r} in {profile.source}"
        return Configured(url, origin, f"prefect config unset {_VARIABLE}")
    origin = f"{_VARIABLE} in .env, prefect.toml or pyproject.toml of this folder"
    return Configured(url, origin, "remove the line there")


def check_server_answers() -> None:
    """Raises :class:`TransientError` when the configured server does not answer; the text has the address's origin.

    Raises :class:`SettingError` for an address that can't be that of Prefect's API, and when the server refuses the
    credentials. Called before a flow begins: Prefect itself would only report a refused connection.
    """
    server = configured_server()
    if server is None:
        return
    if not server.url.startswith(("http://", "https://")):
        raise SettingError(
            f"Prefect server {server.url} ({server.origin}): the address begins neither with http:// nor with "
            f"https://. {server.remedy}"
        )
    failure = _failure()
    if failure is not None:
        if _is_no_api(failure):
            raise SettingError(
                f"Prefect server {server.url} ({server.origin}) answers, and not as Prefect's API does, whose address "
                f"ends in /api. {server.remedy}"
            )
        if (known := classify(failure)) is not None and not known.transient:
            raise known from failure
        raise TransientError(
            f"Prefect server {server.url} ({server.origin}) does not answer ({type(failure).__name__}: {failure}). "
            f"{server.remedy}"
        )


def _failure() -> Exception | None:
    """The error of a request to the server, with credentials, which a health check does not need; else None."""
    from prefect.client.orchestration import get_client

    with get_client(httpx_settings={"timeout": _TIMEOUT_S}, sync_client=True) as client:
        if (failure := client.api_healthcheck()) is not None:
            return failure
        try:
            client.read_flows(limit=1)
        except Exception as error:
            return error
    return None


def _is_no_api(failure: Exception) -> bool:
    """Whether a server has answered that is no API of Prefect: with a page, or that there is no such address."""
    answer = getattr(failure, "response", None)  # of an HTTP error
    return isinstance(failure, JSONDecodeError) or getattr(answer, "status_code", 0) in (404, 405)
