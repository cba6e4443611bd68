"""A server that speaks the S3 protocol, on this machine, for tests of `storage.url`."""

import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any


def environment() -> dict[str, str]:
    """What a process needs to reach the server: set before Ray starts, whose workers get the same environment."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{_free_port()}",
        "AWS_ACCESS_KEY_ID": "access-key-of-tests",
        "AWS_SECRET_ACCESS_KEY": "secret-key-of-tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _free_port() -> int:
    """A port below those that the operating system gives to clients, so that it stays free until the server starts."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no free port")


@dataclass(frozen=True)
class S3Server:
    """A running server; `delays` are the seconds by which it answers the next uploads of a run's files later."""

    endpoint: str
    delays: list[float] = field(default_factory=list)

    def new_bucket(self) -> str:
        """Create a bucket; returns its URL."""
        import s3fs

        name = f"evergreen-{uuid.uuid4().hex[:12]}"
        s3fs.S3FileSystem().mkdir(name)
        return f"s3://{name}"


@contextmanager
def running_s3_server() -> Iterator[S3Server]:
    """Run the server in a thread of this process within the block."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # no line for each request
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    server = ThreadedMotoServer("127.0.0.1", int(endpoint.rpartition(":")[2]), verbose=False)
    server.start()
    try:
        running = S3Server(endpoint)
        _delay_uploads(server._server, running.delays)
        yield running
    finally:
        server.stop()


def _delay_uploads(server: Any, delays: list[float]) -> None:
    answer = server.app

    def delayed(environ: dict[str, Any], start_response: Any) -> Any:
        if delays and environ["REQUEST_METHOD"] == "PUT" and "/files/" in environ["PATH_INFO"]:
            time.sleep(delays.pop(0))
        return answer(environ, start_response)

    server.app = delayed
