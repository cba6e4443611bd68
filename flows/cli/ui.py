"""`evergreen ui`: serve MLflow's web pages for the embedded store, to this machine only."""

import os
import socket
import sys
from typing import NoReturn

import click
import psutil

from flows.cli.output import say
from tasks.report_page.links import MENU
from training.errors import ResourceError, SettingError
from training.storage.paths import Home, home_to_write
from training.telemetry import switch_off

_HOST = "127.0.0.1"
_TRIED = 100  # number of ports to try, to propose a free port instead of a taken one


@click.command
@click.option("--port", type=int, default=5000, show_default=True, help="port on this machine")
def command(port: int) -> int:
    """Serve MLflow's web pages for this home's store."""
    serve(home_to_write(for_run=False), port)


def serve(home: Home, port: int) -> NoReturn:
    """Replace this process by MLflow's server.

    Raises :class:`SettingError` or :class:`ResourceError` when the port can't be used.
    """
    check_port(port)
    switch_off()
    command = ["-m", "mlflow", "ui", "--backend-store-uri", home.mlflow_uri, "--port", str(port)]
    # MLflow's job runner, seven processes for the evaluation of language models, is not needed here.
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    # Otherwise a user's `statistics.py` in the working folder would be imported in place of Python's module.
    os.environ["PYTHONSAFEPATH"] = "1"
    say(f"MLflow's pages of {home.root}: http://{_HOST}:{port}/#/experiments{MENU}")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *command, "--host", _HOST, "--workers", "1"])


def check_port(port: int) -> None:
    """Refuse a port that can't be listened on; MLflow itself would end with status 0 in that case.

    Raises :class:`SettingError` for an invalid port number, and :class:`ResourceError` when the port is taken or this
    user may not use it.
    """
    if not 0 < port < 1 << 16:
        raise SettingError(f"--port {port}: a port is a number from 1 to 65535")
    if (failure := _bind(port)) is None:
        return
    free = next(
        (candidate for candidate in range(port + 1, min(port + _TRIED, 1 << 16)) if _bind(candidate) is None),
        None,
    )
    other = f"choose another: evergreen ui --port {free}" if free else "choose another with --port"
    if isinstance(failure, PermissionError):
        raise ResourceError(f"--port {port}: this user may not listen on that port; {other}")
    raise ResourceError(
        f"--port {port}: {_holder(port)} listens on {_HOST}:{port} already. End that process, or {other}"
    )


def _bind(port: int) -> OSError | None:
    """The error that prevents listening on `port`, or None when listening is possible."""
    with socket.socket() as listener:
        # As servers do: a just closed port is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port))
        except OSError as error:
            return error
    return None


def _holder(port: int) -> str:
    """Description of the process that listens on `port`, as far as this user may inspect it."""
    try:
        sockets = psutil.net_connections("tcp")
        pids = {
            connection.pid
            for connection in sockets
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,)
        }
        return next(f"process {pid} ({psutil.Process(pid).name()})" for pid in pids if pid)
    except (psutil.Error, StopIteration):  # the process is another user's, or has ended in the meantime
        return "another program"
