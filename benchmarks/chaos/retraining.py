"""One `evergreen retrain` in its own process group."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from training.errors import (
    EXIT_BAD_DATA,
    EXIT_BAD_SETTING,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_RESOURCE,
    EXIT_RETRY,
    EXIT_TERMINATED,
    EXIT_TRAINING_FAILED,
)

DOCUMENTED = frozenset(
    {
        EXIT_OK,
        EXIT_BAD_SETTING,
        EXIT_BAD_DATA,
        EXIT_TRAINING_FAILED,
        EXIT_RESOURCE,
        EXIT_RETRY,
        EXIT_INTERRUPTED,
        EXIT_TERMINATED,
        -signal.SIGKILL,
        -signal.SIGTERM,
        -signal.SIGINT,
    }
)
_LAST_WORDS_S = 2.0
HUNG = 998  # stands for a command that did not end in time


class Retraining:
    """A run of the command with working directory `folder`; its output goes to `log`."""

    def __init__(
        self,
        recipe: Path,
        settings: Mapping[str, str],
        environment: dict[str, str],
        log: Path,
        folder: Path,
        prefix: Sequence[str] = (),
    ):
        command = [*prefix, sys.executable, "-m", "flows.cli.main", "retrain", str(recipe)]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        self.log = log
        self.began = time.time()
        # The output passes through a pipe: a file size limit or a full disk must not silence the command.
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._copying = threading.Thread(target=self._copy, daemon=True)
        self._copying.start()

    def _copy(self) -> None:
        assert self.process.stdout is not None
        with self.log.open("ab", buffering=0) as said, self.process.stdout as stream:
            while block := os.read(stream.fileno(), 1 << 16):
                said.write(block)

    @property
    def pid(self) -> int:
        """Process id of the command, which is also its process group's id."""
        return self.process.pid

    @property
    def ended(self) -> bool:
        """Whether the command has ended."""
        return self.process.poll() is not None

    def wait(self, timeout_s: float) -> int:
        """The exit status, negative for a signal. After `timeout_s`, kills the command and returns :data:`HUNG`."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill_group()
            self.process.wait()
            return HUNG
        self._copying.join(_LAST_WORDS_S)  # a process that outlives the command may keep the pipe open
        return status

    def kill_group(self) -> None:
        """SIGKILL the command's whole process group."""
        if not self.ended:
            os.killpg(self.pid, signal.SIGKILL)
