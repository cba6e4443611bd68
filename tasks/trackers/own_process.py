"""Runs a tracker in a separate process, so that its library can neither change nor delay the main process of the run.

Libraries of trackers patch other libraries, start further processes, take folders from environment variables, and wait
for a server when Python exits. The tracker's process reads messages from its standard input, one line of JSON each: the
run, batches of points, the final status. It answers the first and the last message, or an error, on its standard
output. The tracker's process ends at most :data:`LAST_S` seconds after the final status, or after the main process was
killed.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from filelock import FileLock

from tasks.trackers.base import END_S, RunInfo, Status
from training.attempts.metrics import Point
from training.seams import TRACKERS, part_named

LAST_S = END_S - 1  # less than END_S, so that the main process still waits for the answer


class TrackerProcessError(Exception):
    """The process of the tracker failed; the message names the error in that process."""


class OwnProcess:
    """Client of the tracker `name` in a separate process; see :class:`tasks.trackers.base.Tracker`.

    `begin`, `points` and `end` raise :class:`TrackerProcessError` when the tracker has failed. The output of its
    library is in the file `output.log` of the tracker's folder in the run's folder.
    """

    def __init__(self, name: str) -> None:
        self._name, self._log = name, Path()
        self._process: subprocess.Popen[str] | None = None

    def begin(self, run: RunInfo) -> str:
        """Start the process and open the run there; returns the text that tells the run's location."""
        self._log = run.folder / self._name / "output.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log_file:
            self._process = subprocess.Popen(
                # -P: otherwise Python would import a folder `tasks` of the working directory.
                [sys.executable, "-P", "-m", "tasks.trackers.own_process", self._name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                text=True,
                start_new_session=True,  # Ctrl-C does not reach the tracker, which must still receive the final status
            )
        self._send({"run": asdict(run) | {"folder": str(run.folder.absolute())}})
        return self._answer()

    def points(self, batch: Sequence[Point]) -> None:
        """Send the points; does not wait until the tracker has taken them."""
        self._send({"points": [point.model_dump() for point in batch]})

    def end(self, status: Status) -> None:
        """Close the run, and wait until the tracker has taken all points and its process has ended."""
        self._send({"end": status})
        self._answer()
        self._close()

    def kill(self) -> None:
        """End the process at once; any thread may call this method."""
        if self._process is not None:
            self._process.kill()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            print(json.dumps(message), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            self._answer()  # raises the error that ended the process

    def _answer(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        reply = json.loads(line) if line else {"error": f"its process ended; see {self._log}"}
        if "error" in reply:
            self._close()
            raise TrackerProcessError(reply["error"])
        return str(reply["answer"])

    def _close(self) -> None:
        """Close the input of the process and wait until the process, with the exit hooks of its library, has ended."""
        assert self._process is not None
        try:
            self._process.communicate()
        except BrokenPipeError:
            self._process.wait()


def _serve(name: str, given: IO[str], answers: IO[str]) -> None:
    """Run the tracker, in its own process, until the run ends."""
    answer = partial(_write, answers)
    messages: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_receive, args=(given, messages, answer), daemon=True).start()
    try:
        tracker = part_named(TRACKERS, name)()
        run = messages.get()["run"]
        folder = Path(run["folder"])
        with FileLock(folder / name / "lock"):  # the process of an earlier start may still be closing the run
            answer(answer=tracker.begin(RunInfo(**run | {"folder": folder})))
            while "points" in (message := messages.get()):
                tracker.points([Point.model_validate(point) for point in message["points"]])
            tracker.end(message["end"])
        answer(answer="")
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")


def _receive(given: IO[str], messages: SimpleQueue[dict[str, Any]], answer: Callable[..., None]) -> None:
    """Queue all messages, so that the main process never waits; then end this process if it still runs."""
    message: dict[str, Any] = {}
    while "end" not in message:
        line = given.readline()
        killed = not line.endswith("\n")  # the main process was killed
        message = {"end": "KILLED"} if killed else json.loads(line)
        messages.put(message)
    time.sleep(LAST_S)
    answer(error=f"TimeoutError: the tracker did not close the run within {LAST_S:g} s")
    os._exit(1)


def _write(answers: IO[str], **reply: str) -> None:
    with suppress(BrokenPipeError):  # the main process was killed
        print(json.dumps(reply), file=answers, flush=True)


def _private(descriptor: int, mode: str, instead: int) -> IO[str]:
    """The stream of a standard descriptor; the library, and programs that the library starts, get `instead`."""
    stream = os.fdopen(os.dup(descriptor), mode, encoding="utf-8")
    os.dup2(instead, descriptor)
    return stream


if __name__ == "__main__":
    with Path(os.devnull).open() as nothing:
        standard_input = _private(0, "r", nothing.fileno())
    _serve(sys.argv[1], standard_input, _private(1, "w", 2))
