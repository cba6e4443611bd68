"""Guarantees that SIGTERM ends a command, at whatever moment the signal arrives.

Python runs a signal handler between two instructions of the main thread. That may be during an import, or in the
callback of a weak reference, where Python drops the handler's exception; other code catches every exception. So a
handler that raises can lose the signal. A handler that sets a flag alone would not do, either: a call that waits inside
a library, for Ray or for a server, looks at no flag. The handler here raises only outside imports and callbacks. A
watcher thread, which Python's wakeup file descriptor notifies of the signal, repeats the signal while no exception of
the handler is propagating. A process that has not ended after a grace period is killed by the watcher thread: the next
start resumes from the files on disk.
"""

import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from training.errors import EXIT_TERMINATED

GRACE_S = 60.0  # from SIGTERM, or from the end of the training that it stopped, until the process is killed

_REPEAT_S = 0.1
_CHILDREN_S = 5.0
_CALLBACKS = ("weakref.py", "_weakrefset.py")  # files with callbacks of weak references

Receiver = Callable[[int, FrameType | None], None]


class TerminatedError(KeyboardInterrupt):
    """SIGTERM arrived. Ends the command as Ctrl-C does, so that started processes end and locks are freed."""


class Termination:
    """How this process handles SIGTERM while :meth:`watched` is active; see :func:`ended_by_sigterm`."""

    def __init__(self, grace_s: float):
        # Kept as an attribute, to be compared by identity: each `self._on_sigterm` is another object.
        self.handler: Receiver = self._on_sigterm
        # The last receiver handles the signal; without receivers, the last item of `errors` creates the exception.
        self.errors: list[Callable[[], BaseException]] = [TerminatedError]
        self.receivers: list[Receiver] = []
        self.unready = 0  # number of active blocks in which the signal must not be repeated
        self._grace_s = grace_s
        self._over = threading.Event()
        self._on_its_way: weakref.ref[BaseException] | None = None
        self._arrived = False  # whether a SIGTERM arrived while there was no receiver

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self._arrived = not self.receivers
        if self.receivers:
            self.receivers[-1](signum, frame)
        elif not self._is_under_way() and not _would_be_dropped(frame):
            raise self._error()  # not assigned to a variable, which would keep a dropped exception alive

    def _error(self) -> BaseException:
        error = self.errors[-1]()
        self._on_its_way = weakref.ref(error)
        return error

    def _is_under_way(self) -> bool:
        """Whether the exception that was raised last is still alive, which means that it was not dropped."""
        return self._on_its_way is not None and self._on_its_way() is not None

    def add(self, receiver: Receiver) -> None:
        """Make `receiver` handle SIGTERM, also a SIGTERM that arrived before and has not ended anything yet."""
        self.receivers.append(receiver)
        arrived, self._arrived = self._arrived, False
        if arrived and not self._is_under_way():
            receiver(signal.SIGTERM, None)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Run a watcher thread that ends the process if SIGTERM arrives in the block; call in the main thread."""
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
        while received := os.read(reader, 64):  # empty once the pipe is closed
            if signal.SIGTERM in received:
                self._repeat_until_ended()

    def _repeat_until_ended(self) -> None:
        deadline = time.monotonic() + self._grace_s
        while not self._over.wait(_REPEAT_S):
            if self.receivers:  # a training saves a last checkpoint, which has another time limit
                deadline = time.monotonic() + self._grace_s
            elif time.monotonic() > deadline:
                _end_at_once(self._grace_s)
            elif (
                not (self.unready or self._is_under_way())
                and signal.getsignal(signal.SIGTERM) is self.handler
            ):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


_active: list[Termination] = []
# Callbacks of os.register_at_fork have such names; the last two are those of the module `logging`.
_AT_FORK = re.compile("(before|after|at)_?fork|^_acquireLock$|^_releaseLock$")


def active() -> Termination | None:
    """The object that handles SIGTERM in this process now, or None."""
    return _active[-1] if _active else None


@contextmanager
def ended_by_sigterm(grace_s: float = GRACE_S) -> Iterator[Termination]:
    """Make SIGTERM raise :class:`TerminatedError` in the block, in the main thread. Call in the main thread only.

    A process that has not ended `grace_s` seconds after SIGTERM is killed, with all processes that it started; its
    exit status is 143.
    """
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
    """Make `receiver` handle SIGTERM in the block. Call in the main thread only."""
    termination = active()
    if termination is not None and signal.getsignal(signal.SIGTERM) is termination.handler:
        termination.add(receiver)
        try:
            yield
        finally:
            no_longer_to(receiver)
        return
    before = signal.signal(signal.SIGTERM, receiver)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def no_longer_to(receiver: Receiver) -> None:
    """Remove a receiver that :func:`sigterm_to` added: its work did not end in time, so SIGTERM ends the process."""
    termination = active()
    with suppress(ValueError):  # it was removed before
        if termination is not None:
            termination.receivers.remove(receiver)


@contextmanager
def no_repeated_sigterm() -> Iterator[None]:
    """Do not repeat SIGTERM in the block, in which the process may have a handler other than Python's."""
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
    """Whether the main thread is in an import, callback or `__del__`, where an exception is dropped or does harm."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or Path(code.co_filename).name in _CALLBACKS:
            return True
        if code.co_name == "__del__" or _AT_FORK.search(code.co_name):
            return True
        frame = frame.f_back
    return False


def _end_at_once(grace_s: float) -> None:
    """Kill this process and all processes that it has started."""
    said = f"terminated; it did not end within {grace_s:.0f} s of SIGTERM, so it was killed"
    with suppress(OSError):  # file descriptor 2, as the main thread may hold the lock of sys.stderr
        os.write(2, f"\nevergreen: {said}; the same command resumes where it stopped\n".encode())
    # In a thread with a time limit: the import of psutil may wait for an import in the main thread.
    ending = threading.Thread(target=_end_children, daemon=True)
    ending.start()
    ending.join(_CHILDREN_S)
    os._exit(EXIT_TERMINATED)


def _end_children() -> None:
    import psutil

    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            process.kill()
