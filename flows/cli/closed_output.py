"""Replaces standard output and standard error, so that a closed pipe (`| head`) or stream does not end the command.

Further text is discarded, and the command continues: a training is not lost, and an error still ends the command
with the exit status of the error. Standard error also discards what a full disk does not take. Characters that the
stream's encoding lacks are written as escapes.
"""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, cast

_NO_READER = (errno.EPIPE, errno.EIO)  # EIO: of a terminal that was closed, as at the end of an SSH session


class Output:
    """A stream that discards all text once its pipe or terminal was closed; `is_closed` is then true.

    Other errors of the stream, such as that of a full disk, are raised if `raises`; otherwise, the text is lost.
    """

    def __init__(self, stream: TextIO, *, raises: bool):
        self._stream = stream
        self._raises = raises
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
            if error.errno in _NO_READER:
                self.is_closed = True
                self._discard()
            elif self._raises:
                raise

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
        open_ = [
            stream or stack.enter_context(Path(os.devnull).open("w", encoding="utf-8")) for stream in before
        ]
        for stream in open_:
            stack.enter_context(_escaping(stream))
        output, errors = Output(open_[0], raises=True), Output(open_[1], raises=False)
        sys.stdout, sys.stderr = cast("TextIO", output), cast("TextIO", errors)
        try:
            yield output
        finally:
            for stream in (output, errors):
                with suppress(OSError):  # such as of a full disk, which the command has reported
                    stream.flush()
            sys.stdout, sys.stderr = before


@contextmanager
def _escaping(stream: TextIO) -> Iterator[None]:
    """In the block, write a character that the stream's encoding lacks as an escape instead of raising an error."""
    if not isinstance(stream, io.TextIOWrapper) or stream.errors != "strict":
        yield
        return
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with suppress(OSError, ValueError):  # a full disk; a stream that was closed meanwhile
            stream.reconfigure(errors="strict")
