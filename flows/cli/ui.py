"""`evergreen ui`: MLflow's pages on the embedded store, served to this machine only."""

import os
import socket
import sys
from typing import NoReturn

import click
import psutil

from training.errors import ResourceError, SettingError
from training.storage.paths import Home, home

_HOST = "127.0.0.1"
_TRIED = 100  # ports after a taken one, in search of a free one to propose


@click.command
@click.option("--port", type=int, default=5000, show_default=True, help="port on this machine")
def command(port: int) -> int:
    """Open MLflow on this home's store."""
    serve(home(), port)


def serve(place: Home, port: int) -> NoReturn:
    """Become MLflow's server. Raises :class:`SettingError` or :class:`ResourceError` when the port can't be had."""
    check_port(port)
    command = ["-m", "mlflow", "ui", "--backend-store-uri", place.mlflow_uri, "--port", str(port)]
    # Its job runner, seven processes for the evaluation of language models, has nothing to do here.
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *command, "--host", _HOST, "--workers", "1"])


def check_port(port: int) -> None:
    """Refuse a port that can't be listened on; MLflow would end with status 0 all the same.

    Raises :class:`SettingError` for what is no port, :class:`ResourceError` when it is taken or not allowed.
    """
    if not 0 < port < 1 << 16:
        raise SettingError(f"--port {port}: a port is a number from 1 to 65535")
    if (failure := _bind(port)) is None:
        return
    free = next((one for one in range(port + 1, min(port + _TRIED, 1 << 16)) if _bind(one) is None), None)
    other = f"choose another: evergreen ui --port {free}" if free else "choose another with --port"
    if isinstance(failure, PermissionError):
        raise ResourceError(f"--port {port}: this user must not listen on it; {other}")
    raise ResourceError(
        f"--port {port}: {_holder(port)} listens on {_HOST}:{port} already. End it, or {other}"
    )


def _bind(port: int) -> OSError | None:
    """Why `port` can't be listened on, or None when it can."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port just left is free
        try:
            one.bind((_HOST, port))
        except OSError as error:
            return error
    return None


def _holder(port: int) -> str:
    """The process that listens on `port`, as far as this user may know."""
    try:
        sockets = psutil.net_connections("tcp")
        pids = {one.pid for one in sockets if one.status == psutil.CONN_LISTEN and one.laddr[1:] == (port,)}
        return next(f"process {pid} ({psutil.Process(pid).name()})" for pid in pids if pid)
    except (psutil.Error, StopIteration):  # another user's, or it ended meanwhile
        return "another program"
