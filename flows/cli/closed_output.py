"""Replaces standard output and standard error, so that a closed pipe (`| head`) or stream does not end the command.

Further text is discarded, and the command continues: a training is not lost, and an error still ends the command
with the exit status of the error.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, cast

_NO_READER = (errno.EPIPE, errno.EIO)  # EIO: of a terminal that was closed, as at the end of an SSH session


class Output:
    """A stream that discards all text once its pipe or terminal was closed; `is_closed` is then true."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.is_closed = False

    def write(self, text: str) -> int:
        """Write `text`, if there is a reader; returns the number of characters."""
        with self._noticed():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Pass buffered text on, if there is a reader."""
        with self._noticed():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _noticed(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_READER:
                raise
            self.is_closed = True
            self._discard()

    def _discard(self) -> None:
        """Send what the stream still buffers, and all later text, to the null device."""
        with suppress(OSError):  # no file, as in a test
            number = self._stream.fileno()
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)


@contextmanager
def lenient_output() -> Iterator[Output]:
    """Replace standard output and standard error by an :class:`Output` during the block; yields standard output's."""
    before = sys.stdout, sys.stderr
    with ExitStack() as stack:
        # Python has None for a stream that was closed when the process began.
        open_ = [one or stack.enter_context(Path(os.devnull).open("w", encoding="utf-8")) for one in before]
        output, errors = (Output(one) for one in open_)
        sys.stdout, sys.stderr = cast("TextIO", output), cast("TextIO", errors)
        try:
            yield output
        finally:
            for one in (output, errors):
                with suppress(OSError):  # such as of a full disk, which the command has reported
                    one.flush()
            sys.stdout, sys.stderr = before
