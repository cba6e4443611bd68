"""The proxy of the chaos tests, with a real web server: forward, refuse, answer 500, delay, close connections."""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from web_site import serving

from benchmarks.chaos.proxy import Mood, Proxy


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with serving() as site, Proxy(site.server_port, delay_s=0.5) as made:
        site.give("/here", b"content")
        yield made


def ask(proxy: Proxy) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{proxy.port}/here", timeout=60) as answer:
        content: bytes = answer.read()
        return content


def test_it_passes_on(proxy: Proxy) -> None:
    assert ask(proxy) == b"content"


def test_it_refuses_and_comes_back(proxy: Proxy) -> None:
    proxy.change(Mood.REFUSE)
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(proxy)
    proxy.change(Mood.PASS)
    assert ask(proxy) == b"content"


def test_it_answers_500(proxy: Proxy) -> None:
    proxy.change(Mood.FAIL)
    with pytest.raises(urllib.error.HTTPError) as failed:
        ask(proxy)
    assert failed.value.code == 500


def test_it_delays(proxy: Proxy) -> None:
    proxy.change(Mood.DELAY)
    began = time.monotonic()
    assert ask(proxy) == b"content"
    assert time.monotonic() - began >= 0.5


def test_a_connection_of_the_mood_before_is_cut(proxy: Proxy) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    connection.connect()
    time.sleep(0.2)
    proxy.change(Mood.REFUSE)
    with pytest.raises((OSError, http.client.HTTPException)):
        ask_again(connection)
    connection.close()


def ask_again(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/here")
    connection.getresponse()
