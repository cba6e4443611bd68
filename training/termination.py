"""SIGTERM ends a command for certain, at whatever moment it comes.

Python runs a signal's handler between two instructions of the main thread. That may be in the middle of an import, or
in the callback of a weak reference, which drops what the handler raises; other code catches every exception. So a
handler that raises can lose the signal. Here the handler raises only outside imports and callbacks. A thread, which
Python's wakeup file descriptor tells of the signal, repeats it as long as no exception is on its way. A process that
has not ended after a time of grace is ended by that thread: the next start goes on from what is on disk.
"""

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from training.errors import EXIT_TERMINATED

GRACE_S = 60.0  # from SIGTERM, or the end of the training that it stopped, until the process is ended

_REPEAT_S = 0.1
_CHILDREN_S = 5.0
_CALLBACKS = ("weakref.py", "_weakrefset.py")  # of weak references

Receiver = Callable[[int, FrameType | None], None]


class TerminatedError(KeyboardInterrupt):
    """SIGTERM came; it ends the command as Ctrl-C does, so that what was started is ended and locks are freed."""


class Termination:
    """What SIGTERM does to this process while :meth:`watched` is active; see :func:`ended_by_sigterm`."""

    def __init__(self, grace_s: float):
        self.handler: Receiver = (
            self._on_sigterm
        )  # a name of its own: each `self._on_sigterm` is another object
        self.errors: list[Callable[[], BaseException]] = [TerminatedError]  # the last one is raised
        self.receivers: list[Receiver] = []  # the last one takes the signal instead
        self.unready = 0  # blocks in which no signal must be repeated
        self._grace_s = grace_s
        self._over = threading.Event()
        self._on_its_way: weakref.ref[BaseException] | None = None

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        if self.receivers:
            self.receivers[-1](signum, frame)
        elif not self._is_under_way() and not _would_be_dropped(frame):
            raise self._error()  # not kept in a name, as that would keep it alive when it is dropped

    def _error(self) -> BaseException:
        error = self.errors[-1]()
        self._on_its_way = weakref.ref(error)
        return error

    def _is_under_way(self) -> bool:
        """Whether the exception that was raised last is still alive, so that it has not been dropped."""
        return self._on_its_way is not None and self._on_its_way() is not None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let a thread see to it that the process ends, should SIGTERM come in the block. In the main thread only."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        watcher = threading.Thread(target=self._watch, args=(reader,), name="evergreen-sigterm", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._over.set()
            signal.set_wakeup_fd(before)
            os.close(writer)
            watcher.join()
            os.close(reader)

    def _watch(self, reader: int) -> None:
        while received := os.read(reader, 64):  # nothing at the end
            if signal.SIGTERM in received:
                self._see_to_it()

    def _see_to_it(self) -> None:
        deadline = time.monotonic() + self._grace_s
        while not self._over.wait(_REPEAT_S):
            if self.receivers:  # a training saves a last checkpoint, within a limit of its own
                deadline = time.monotonic() + self._grace_s
            elif time.monotonic() > deadline:
                _end_at_once(self._grace_s)
            elif (
                not (self.unready or self._is_under_way())
                and signal.getsignal(signal.SIGTERM) is self.handler
            ):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


_active: list[Termination] = []


def active() -> Termination | None:
    """What watches over SIGTERM in this process now."""
    return _active[-1] if _active else None


@contextmanager
def ended_by_sigterm(grace_s: float = GRACE_S) -> Iterator[Termination]:
    """SIGTERM in the block raises :class:`TerminatedError` in the main thread, or ends the process after `grace_s`."""
    termination = Termination(grace_s)
    with termination.watched():
        before = signal.signal(signal.SIGTERM, termination.handler)
        _active.append(termination)
        try:
            yield termination
        finally:
            _active.remove(termination)
            signal.signal(signal.SIGTERM, before)


@contextmanager
def sigterm_to(receiver: Receiver) -> Iterator[None]:
    """Hand SIGTERM to `receiver` in the block. In the main thread only."""
    termination = active()
    if termination is not None and signal.getsignal(signal.SIGTERM) is termination.handler:
        termination.receivers.append(receiver)
        try:
            yield
        finally:
            termination.receivers.remove(receiver)
        return
    before = signal.signal(signal.SIGTERM, receiver)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def no_repeated_sigterm() -> Iterator[None]:
    """Repeat no SIGTERM in the block, in which the process may have a handler that is not Python's."""
    termination = active()
    if termination is None:
        yield
        return
    termination.unready += 1
    try:
        yield
    finally:
        termination.unready -= 1


def _would_be_dropped(frame: FrameType | None) -> bool:
    """Whether the main thread imports a module or is in a callback, where an exception is dropped or does damage."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or Path(code.co_filename).name in _CALLBACKS:
            return True
        if code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _end_at_once(grace_s: float) -> None:
    """End this process and all that it has started."""
    said = f"terminated; it did not end within {grace_s:.0f} s of SIGTERM, so it was killed"
    with suppress(OSError):  # by its number, as Python's own stream may be locked by the main thread
        os.write(2, f"\nevergreen: {said}; the same command goes on where it stopped\n".encode())
    ending = threading.Thread(target=_end_children, daemon=True)  # its imports may wait for the main thread's
    ending.start()
    ending.join(_CHILDREN_S)
    os._exit(EXIT_TERMINATED)


def _end_children() -> None:
    import psutil

    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            process.kill()
