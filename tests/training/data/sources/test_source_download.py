"""Downloads from a real HTTP server on this machine."""

import hashlib
import itertools
import socket
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pytest

from training.data.sources.download import fetch_any, fetch_file
from training.errors import DataError, EvergreenError, SettingError, TransientError

CONTENT = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


def test_brings_the_whole_file(site, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    fetch_file(site.give("/file", CONTENT), target, size=len(CONTENT), sha256=SHA256.upper(), md5=MD5)
    assert target.read_bytes() == CONTENT


def test_a_right_file_is_not_fetched_again(site, tmp_path: Path) -> None:
    url, target = site.give("/file", CONTENT), tmp_path / "file"
    fetch_file(url, target, sha256=SHA256)
    fetch_file(url, target, sha256=SHA256)
    assert site.requests == ["/file"]


def test_a_damaged_file_is_fetched_again(site, tmp_path: Path) -> None:
    url, target = site.give("/file", CONTENT), tmp_path / "file"
    target.write_bytes(CONTENT[:-1])
    fetch_file(url, target, md5=MD5)
    assert target.read_bytes() == CONTENT


def test_follows_a_redirect_on_the_same_host(site, tmp_path: Path) -> None:
    site.give("/file", CONTENT)
    fetch_file(site.fail("/moved", 302, Location="/file"), tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


def refused(url: str, folder: Path, kind: type[EvergreenError], **expected: object) -> str:
    with pytest.raises(kind) as caught:
        fetch_file(url, folder / "file", **expected)  # type: ignore[arg-type]
    assert type(caught.value) is kind
    assert list(folder.iterdir()) == [], "nothing may be left behind"
    assert url in str(caught.value)
    return str(caught.value)


def test_truncated_is_transient(site, tmp_path: Path) -> None:
    message = refused(site.give("/file", CONTENT[:1000], announced=len(CONTENT)), tmp_path, TransientError)
    assert "1,000 of 1,280,000 bytes" in message


def unannounced(content: bytes, pause_s: float = 0.0):
    """An answer without a length, which ends with the connection; one byte per pause, or all bytes at once."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for piece in [content[i : i + 1] for i in range(len(content))] if pause_s else [content]:
            handler.wfile.write(piece)
            time.sleep(pause_s)

    return answer


def test_cut_short_without_a_length_is_transient(site, tmp_path: Path) -> None:
    site.answers["/file"] = unannounced(CONTENT[:1000])
    message = refused(site.url("/file"), tmp_path, TransientError, size=len(CONTENT))
    assert "1,000 of 1,280,000 bytes" in message


def test_too_much_is_not_read_to_its_end(site, tmp_path: Path) -> None:
    site.answers["/file"] = unannounced(CONTENT)
    assert "expected 1 byte, got more" in refused(site.url("/file"), tmp_path, DataError, size=1)
    message = refused(site.give("/said", CONTENT), tmp_path, DataError, size=1)
    assert "expected 1 byte, the server has 1,280,000" in message


def test_a_file_whose_size_nobody_tells_has_a_limit(
    site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.answers["/file"] = unannounced(CONTENT)
    fetch_file(site.url("/file"), tmp_path / "inner" / "file")
    assert (tmp_path / "inner" / "file").read_bytes() == CONTENT
    monkeypatch.setattr("training.data.sources.download._MAX_BYTES", 1000)
    (tmp_path / "empty").mkdir()
    assert "expected 1,000 bytes, got more" in refused(site.url("/file"), tmp_path / "empty", DataError)


def test_a_length_that_is_no_number_is_transient(site, tmp_path: Path) -> None:
    site.answers["/file"] = with_length("many")
    assert "'many'" in refused(site.url("/file"), tmp_path, TransientError)


def with_length(value: str):
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", value)
        handler.end_headers()

    return answer


def test_a_server_that_sends_next_to_nothing_is_left(
    site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.answers["/file"] = unannounced(bytes(1000), pause_s=0.2)
    clock = itertools.count(step=20)  # 20 s pass between two looks at the clock, whatever the machine does
    monkeypatch.setattr("training.data.sources.download.time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert "only " in refused(site.url("/file"), tmp_path, TransientError, timeout_s=60)


@pytest.mark.parametrize("digest", ["sha256", "md5"])
def test_wrong_checksum_names_expected_and_got(site, tmp_path: Path, digest: str) -> None:
    wrong = "0" * (64 if digest == "sha256" else 32)
    message = refused(site.give("/file", CONTENT), tmp_path, TransientError, **{digest: wrong})
    assert wrong in message
    assert {"sha256": SHA256, "md5": MD5}[digest] in message
    assert "Run the same command again" in message


@pytest.mark.parametrize("size", [len(CONTENT) - 1, len(CONTENT) + 1])
def test_wrong_size(site, tmp_path: Path, size: int) -> None:
    assert f"{size:,} bytes" in refused(site.give("/file", CONTENT), tmp_path, DataError, size=size)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, DataError), (403, DataError), (429, TransientError), (500, TransientError), (503, TransientError)],
)
def test_status(site, tmp_path: Path, status: int, kind: type[EvergreenError]) -> None:
    assert str(status) in refused(site.fail("/file", status), tmp_path, kind)


@pytest.mark.parametrize(
    "elsewhere",
    [
        "http://localhost:{port}/file",
        "http://127.0.0.1:1/file",
        "https://127.0.0.1:{port}/file",
        "http://127.0.0.1:99999/file",
        "http://data.example/file",
        "ftp://127.0.0.1/x",
        "file:///etc/hostname",
    ],
)
def test_redirect_elsewhere_is_refused(site, tmp_path: Path, elsewhere: str) -> None:
    site.give("/file", CONTENT)
    location = elsewhere.format(port=site.server_port)
    refused(site.fail("/moved", 302, Location=location), tmp_path, DataError)
    assert site.requests == ["/moved"]


def test_a_redirect_in_circles_is_refused(site, tmp_path: Path) -> None:
    refused(site.fail("/round", 302, Location="/round"), tmp_path, DataError)


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        refused(f"http://127.0.0.1:{unused.getsockname()[1]}/file", tmp_path, TransientError, timeout_s=2)


def test_a_silent_server_times_out(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        refused(f"http://127.0.0.1:{silent.getsockname()[1]}/file", tmp_path, TransientError, timeout_s=0.2)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/hostname",
        "ftp://host/file",
        "/etc/hostname",
        "https:///file",
        "https://host:port/file",
        "https://[::1/file",
    ],
)
def test_only_whole_addresses_of_the_web(tmp_path: Path, url: str) -> None:
    assert "only https://" in refused(url, tmp_path, SettingError)


@pytest.mark.parametrize(
    "host",
    ["data.example", "localhost.data.example", "127.0.0.1@data.example", "10.0.0.1", "0x7f.1", "[fe80::1]"],
)
def test_plain_http_is_for_this_machine_only(tmp_path: Path, host: str) -> None:
    # Refused before any connection: no server listens at these addresses.
    assert "plain http://" in refused(f"http://{host}/file", tmp_path, SettingError)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_proxy_is_not_asked_for_what_is_on_this_machine(
    site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    url = site.give("/file", CONTENT).replace("127.0.0.1", host)
    fetch_file(url, tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_the_next_mirror_is_tried(site, tmp_path: Path) -> None:
    urls = [
        site.fail("/gone", 404),
        site.give("/damaged", b"x"),
        site.give("/good", CONTENT),
        site.fail("/late", 500),
    ]
    fetch_any(urls, tmp_path / "file", sha256=SHA256)
    assert site.requests == ["/gone", "/damaged", "/good"]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_damaged_file_on_the_last_mirror_is_transient(site, tmp_path: Path) -> None:
    urls = [site.fail("/gone", 404), site.give("/damaged", CONTENT[::-1])]
    with pytest.raises(TransientError, match="wrong sha256"):
        fetch_any(urls, tmp_path / "file", size=len(CONTENT), sha256=SHA256)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("statuses", "kind"), [((404, 503), TransientError), ((404, 410), DataError)])
def test_all_mirrors_fail(
    site, tmp_path: Path, statuses: tuple[int, ...], kind: type[EvergreenError]
) -> None:
    urls = [site.fail(f"/{status}", status) for status in statuses]
    with pytest.raises(kind) as caught:
        fetch_any(urls, tmp_path / "file")
    assert all(url in str(caught.value) for url in urls)
