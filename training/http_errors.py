"""Parts of an error of the HTTP library httpx, with which Prefect's client talks to its server; imports no httpx."""

REFUSED = (401, 403)  # statuses of a server that does not accept the credentials


def address_of(error: BaseException) -> str:
    """Scheme, host and port of the request that failed, without credentials, path and query; empty if unknown."""
    try:
        url = error.request.url  # type: ignore[attr-defined]
        return f"{url.scheme}://{url.netloc.decode()}"
    except (AttributeError, RuntimeError):  # httpx raises RuntimeError for an error without a request
        return ""


def status_of(error: BaseException) -> int:
    """HTTP status of the server's answer; 0 when the error has no answer."""
    return int(getattr(getattr(error, "response", None), "status_code", 0))
