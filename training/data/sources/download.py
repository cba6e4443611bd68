"""Download a file over https, check it, and put it under its final name atomically.

In: a URL, and the size and digests of its content. Out: a file under its final name. Nothing is retried here; the
type of an error tells whether a retry may help. A download comes only from the host in the URL, and only over https;
plain http is allowed only to this machine itself.
"""

import hashlib
import http.client
import ipaddress
import logging
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from email.message import Message
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from training.data.sources.wording import counted
from training.errors import DataError, EvergreenError, SettingError, TransientError
from training.storage.files import atomic_file, copy_checked

log = logging.getLogger("evergreen.sources")
T = TypeVar("T")

_RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_ELSEWHERE = "If the file is on this machine already, set data.path to it"
_AGAIN = "Run the same command again"
_MAX_BYTES = 64 << 30  # limit for a file of unknown size
_SLOWEST = 1024  # bytes per second, on average
_PORTS = {"https": 443, "http": 80}


def fetch_file(
    url: str,
    target: Path,
    *,
    size: int | None = None,
    sha256: str | None = None,
    md5: str | None = None,
    timeout_s: float = 30.0,
) -> None:
    """Download `url` to `target`, unless a file with the given digests is there already.

    `size` is in bytes, digests are in hex. `timeout_s` limits each wait for the server; a transfer may take at most
    `timeout_s` plus one second per KiB received. Raises :class:`SettingError` for a URL that isn't https (or http to
    this machine), :class:`TransientError` for a failure that may pass (network, 5xx, an incomplete transfer, a wrong
    digest of as many bytes as expected) and :class:`DataError` for a failure that a retry can't fix (404, a file of
    another size, a redirect to another host, an invalid certificate).
    """
    _check_address(url)
    expected = {"sha256": sha256, "md5": md5}
    if any(expected.values()) and target.is_file() and not _wrong_digests(target, expected):
        return
    log.info("downloading %s", url)
    with atomic_file(target) as aside:
        received = _transfer(url, aside, size, timeout_s)
        if size is not None and received != size:
            raise DataError(f"{url}: expected {counted(size, 'byte')}, got {received:,}. {_ELSEWHERE}.")
        for name, (wanted, got) in _wrong_digests(aside, expected).items():
            raise TransientError(
                f"{url}: wrong {name}: expected {wanted}, got {got}. The file was damaged on its way, or changed at "
                f"this address, and is not used. {_AGAIN}. {_ELSEWHERE}."
            )


def fetch_any(
    urls: Sequence[str],
    target: Path,
    *,
    size: int | None = None,
    sha256: str | None = None,
    md5: str | None = None,
    timeout_s: float = 30.0,
) -> None:
    """Download a file with :func:`fetch_file` from the first of several mirrors that works.

    Raises :class:`TransientError` when at least one mirror may work later, else :class:`DataError`; the message lists
    the error of each mirror.
    """
    failures: list[EvergreenError] = []
    for url in urls:
        try:
            return fetch_file(url, target, size=size, sha256=sha256, md5=md5, timeout_s=timeout_s)
        except (DataError, TransientError) as error:
            log.warning("%s", error)
            failures.append(error)
    kind = TransientError if any(error.transient for error in failures) else DataError
    raise kind("\n".join(str(error) for error in failures))


def _check_address(url: str) -> None:
    origin = _origin(url)
    if origin is None:
        raise SettingError(f"{url}: only https:// addresses can be downloaded. {_ELSEWHERE}.")
    if origin.scheme == "http" and not origin.is_local:
        raise SettingError(
            f"{url}: plain http:// is not used, as anyone on the way can change what arrives. "
            f"Take its https:// address. {_ELSEWHERE}."
        )


class _Origin(NamedTuple):
    scheme: str
    host: str
    port: int

    @property
    def is_local(self) -> bool:
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _origin(url: str) -> _Origin | None:
    """Scheme, host and port of a URL, or None when it is not a complete http(s) URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return _Origin(parts.scheme, parts.hostname, port) if parts.hostname else None


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to the same scheme, host and port: the user has not chosen to trust another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        if _origin(req.full_url) != _origin(newurl):
            raise DataError(
                f"{req.full_url}: redirects to {newurl}, which is another host, port or an insecure scheme; "
                f"that is not followed. If you trust it, use that address. {_ELSEWHERE}."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _opener(url: str) -> urllib.request.OpenerDirector:
    origin = _origin(url)
    direct = [urllib.request.ProxyHandler({})] if origin and origin.is_local else []
    return urllib.request.build_opener(_SameHost, *direct)


def _transfer(url: str, target: Path, size: int | None, timeout_s: float) -> int:
    """Write the response of `url` to `target`; returns the number of bytes."""
    request = urllib.request.Request(url, headers={"User-Agent": "evergreen"})
    response = _from_network(url, lambda: _opener(url).open(request, timeout=timeout_s))
    with response:
        announced = _announced(url, response)
        limit = size if size is not None else announced if announced is not None else _MAX_BYTES
        if announced is not None and announced > limit:
            raise DataError(
                f"{url}: expected {counted(limit, 'byte')}, the server has {announced:,}. {_ELSEWHERE}."
            )
        _, received = copy_checked(_bounded(url, response, limit, timeout_s), target)
    whole = announced if announced is not None else size
    if whole is not None and received < whole:
        raise TransientError(
            f"{url}: the transfer ended after {received:,} of {counted(whole, 'byte')}. {_AGAIN}."
        )
    return received


def _announced(url: str, response: Any) -> int | None:
    """Number of bytes that the server announces (Content-Length), or None when it announces none."""
    value: str | None = response.headers.get("Content-Length")
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()):
        raise TransientError(f"{url}: the server announces {value!r} bytes, which is no number. {_AGAIN}.")
    return int(value)


def _bounded(url: str, response: Any, limit: int, grace_s: float) -> Callable[[int], bytes]:
    """A `read` of `response` that fails when the server sends more than `limit` bytes, or sends too slowly."""
    received, began = 0, time.monotonic()

    def read(amount: int) -> bytes:
        nonlocal received
        # Only the network read is wrapped, so that a full disk is not reported as a network error. `read1` returns
        # bytes as soon as they arrive, so that a server which sends a byte now and then is detected.
        chunk: bytes = _from_network(url, lambda: response.read1(amount))
        received += len(chunk)
        if received > limit:
            raise DataError(f"{url}: expected {counted(limit, 'byte')}, got more. {_ELSEWHERE}.")
        elapsed = time.monotonic() - began
        if elapsed > grace_s + received / _SLOWEST:
            raise TransientError(
                f"{url}: only {counted(received, 'byte')} in {elapsed:.0f} s. {_AGAIN} later."
            )
        return chunk

    return read


def _from_network(url: str, action: Callable[[], T]) -> T:
    try:
        return action()
    except urllib.error.HTTPError as error:
        raise _answer(url, error) from error
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise DataError(
                f"{url}: its certificate is not valid ({reason.verify_message}). {_ELSEWHERE}."
            ) from error
        raise TransientError(
            f"{url}: {type(error).__name__}: {reason}. Check the network. {_AGAIN}. {_ELSEWHERE}."
        ) from error


def _answer(url: str, error: urllib.error.HTTPError) -> EvergreenError:
    what = f"{url}: the server answered {error.code} {error.reason}."
    if error.code in _RETRY_STATUS or error.code >= 500:
        return TransientError(f"{what} {_AGAIN} later. {_ELSEWHERE}.")
    return DataError(f"{what} Check the address. {_ELSEWHERE}.")


def _wrong_digests(path: Path, expected: dict[str, str | None]) -> dict[str, tuple[str, str]]:
    """For each digest that differs, by name: the expected and the actual value."""
    wrong = {}
    for name, wanted in expected.items():
        if wanted:
            with path.open("rb") as stream:
                # Many publishers give only md5, which protects against damage, not against a malicious publisher.
                got = hashlib.file_digest(
                    stream, partial(hashlib.new, name, usedforsecurity=False)
                ).hexdigest()
            if got != wanted.lower():
                wrong[name] = (wanted, got)
    return wrong
