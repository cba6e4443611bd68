"""A real PostgreSQL server for tests, in a folder of its own and reached by a Unix socket alone."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_START_S = 600.0


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server for the duration of the block; yields the SQLAlchemy URL of its empty database.

    Skips the test where PostgreSQL's server is not installed.
    """
    programs = _programs()
    if programs is None:
        pytest.skip("needs PostgreSQL's server (Debian: apt-get install postgresql)")
    # A socket's path has a short limit.
    folder = Path(tempfile.mkdtemp(prefix="evergreen-postgres-", dir="/tmp"))
    user = _other_user(folder)
    try:
        data = folder / "data"
        initdb = [programs / "initdb", "--auth=trust", "--username=evergreen", "--encoding=UTF8", data]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **user)
        with (folder / "server.log").open("ab") as said:
            server = subprocess.Popen(
                [programs / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses="],
                stdout=said,
                stderr=said,
                cwd=folder,
                **user,
            )
        try:
            _wait(server, programs, folder)
            yield f"postgresql+psycopg://evergreen@/postgres?host={folder}"
        finally:
            server.send_signal(signal.SIGQUIT)  # ends the sessions of clients, too
            server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path | None:
    """The folder of `initdb`, which Debian's packages leave out of PATH; None if PostgreSQL is not installed."""
    if program := shutil.which("initdb"):
        return Path(program).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


def _other_user(folder: Path) -> dict[str, Any]:
    """Arguments that start a process as another user if this user is root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return {}
    shutil.chown(folder, "nobody")
    return {"user": "nobody", "extra_groups": []}


def _wait(server: "subprocess.Popen[bytes]", programs: Path, folder: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        assert server.poll() is None, (folder / "server.log").read_text()[-2000:]
        ready = subprocess.run([programs / "pg_isready", "-q", "-h", folder, "-U", "evergreen"], check=False)
        if ready.returncode == 0:
            return
        time.sleep(0.1)
    raise AssertionError("PostgreSQL's server did not start")
