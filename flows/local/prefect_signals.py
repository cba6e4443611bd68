"""SIGTERM during a flow: Evergreen's handler in the place of the one that Prefect's engine installs.

Prefect's handler raises wherever the main thread is, also where the exception is dropped (see
:mod:`training.termination`). And Prefect's worker asks a run to confirm a cancellation before it sends SIGTERM, which
the run's process does only while the engine's own handler is installed. With another one, as during a training, the
SIGTERM counts as a crash, and the run is Crashed until its worker reports the cancellation.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from training.termination import Termination, active, ended_by_sigterm


@contextmanager
def sigterm_ends_flow() -> Iterator[None]:
    """SIGTERM in the block ends the flow run: as Cancelled when Prefect's worker asked for that, else as Crashed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with ExitStack() as stack:
        termination = active() or stack.enter_context(ended_by_sigterm())
        stack.enter_context(_in_place_of_prefects(termination))
        yield


@contextmanager
def _in_place_of_prefects(termination: Termination) -> Iterator[None]:
    """The engine takes the handler that this name refers to for its own; it has no public way to set one."""
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
