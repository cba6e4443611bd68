"""SIGTERM during a flow: Evergreen's handler replaces the handler that Prefect's engine installs.

Prefect's handler raises at whatever point the main thread is, even where the exception is dropped (see
:mod:`training.termination`). Besides, Prefect's worker asks a run to confirm a cancellation before it sends SIGTERM,
and the run's process confirms only while the engine's own handler is installed. With another handler, as during a
training, the SIGTERM counts as a crash, and the run is Crashed until its worker reports the cancellation.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from training.termination import Termination, active, ended_by_sigterm


@contextmanager
def sigterm_ends_flow() -> Iterator[None]:
    """SIGTERM in the block ends the flow run: as Cancelled when Prefect's worker requested that, else as Crashed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with ExitStack() as stack:
        termination = active() or stack.enter_context(ended_by_sigterm())
        stack.enter_context(_in_place_of_prefects(termination))
        yield


@contextmanager
def _in_place_of_prefects(termination: Termination) -> Iterator[None]:
    """Make Evergreen's handler the one that the engine regards as its own.

    The engine has no public way to do this: it compares the installed handler with a private name.
    """
    from prefect.exceptions import TerminationSignal
    from prefect.utilities import engine

    theirs: Any = engine
    prefects, before = theirs._prefect_sigterm_handler, signal.getsignal(signal.SIGTERM)
    with theirs._prefect_sigterm_bridge_lock:  # so that no cancellation is confirmed in between
        theirs._prefect_sigterm_handler = termination.handler
        signal.signal(signal.SIGTERM, termination.handler)
    termination.errors.append(lambda: TerminationSignal(signal=signal.SIGTERM))
    try:
        yield
    finally:
        termination.errors.pop()
        with theirs._prefect_sigterm_bridge_lock:
            theirs._prefect_sigterm_handler = prefects
            signal.signal(signal.SIGTERM, before)
