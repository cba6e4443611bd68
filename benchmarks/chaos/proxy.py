"""A TCP proxy for a server on this machine that forwards, refuses, answers 500 or delays, as a fault demands."""

import contextlib
import socket
import threading
import time
from enum import Enum
from typing import Self

_ANSWER = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_BLOCK = 1 << 16


class Mood(Enum):
    """How the proxy treats requests."""

    PASS = "pass"
    REFUSE = "refuse"
    FAIL = "answer 500"
    DELAY = "delay"


class Proxy:
    """Listens on a free port; under `Mood.DELAY`, each block of a request waits `delay_s` seconds."""

    def __init__(self, port: int, delay_s: float = 30.0):
        self.target = port
        self.delay_s = delay_s
        self.mood = Mood.PASS
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self.change(Mood.REFUSE)

    def change(self, mood: Mood) -> None:
        """Switch to another `Mood`; connections that were opened under the previous one are closed."""
        self.mood = mood
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return  # the listening socket is closed
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        mood = self.mood
        self._open.add(client)
        try:
            with client, contextlib.suppress(OSError):
                if mood is Mood.FAIL:
                    client.recv(_BLOCK)
                    client.sendall(_ANSWER)
                elif mood is not Mood.REFUSE:
                    self._pass_on(client, self.delay_s if mood is Mood.DELAY else 0.0)
        finally:
            self._open.discard(client)

    def _pass_on(self, client: socket.socket, delay_s: float) -> None:
        with socket.create_connection(("127.0.0.1", self.target)) as server:
            self._open.add(server)
            back = threading.Thread(target=_copy, args=(server, client, 0.0), daemon=True)
            back.start()
            _copy(client, server, delay_s)
            back.join()
            self._open.discard(server)


def _copy(source: socket.socket, target: socket.socket, delay_s: float) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(_BLOCK):
            time.sleep(delay_s)
            target.sendall(block)
    for connection in (source, target):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
