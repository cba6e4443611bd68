"""Starts attempts of a training until the model is finished. Only a transient failure leads to another attempt.

One budget, `failure.max_failures`, covers failures of the workers, of Ray Train's controller and of Ray itself. Each
attempt resumes from the newest checkpoint. A :class:`training.supervision.watchdog.Watchdog` monitors the workers.
On SIGTERM, Ctrl-C or a cancellation, the workers save a last checkpoint before they end. A driver ends when another
driver has superseded it on the same run.
"""

import logging
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType

from training.attempts.fence import Fence, RivalDriverError, new_driver, next_attempt
from training.attempts.heartbeat import furthest_step, read_beats
from training.attempts.history import Failure, note, read_attempts
from training.attempts.job import TrainingJob
from training.attempts.log_relay import Relay
from training.checkpoints.opening import stored_run
from training.errors import (
    EvergreenError,
    StopRequestedError,
    TrainingError,
    TransientError,
    causes,
    classify,
)
from training.ray_cluster.capacity import NoCapacityError
from training.ray_cluster.cluster import HeadLostError, HeadWatch, restart_dead_ray
from training.ray_cluster.ray_train import upload_inputs
from training.recipe_errors import raised_at
from training.redaction import redact
from training.storage.files import sweep, write_text
from training.supervision.deadlines import UNWIND_S, Deadlines
from training.supervision.preemption import PreemptionPoller
from training.supervision.watchdog import Watchdog, end_workers
from training.termination import Receiver, no_longer_to, sigterm_to

log = logging.getLogger("evergreen.supervise")

_LOOK_S = 0.5
_STORE_PAUSE_S = 5.0  # until a store that is away is asked again
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0
# Time until Ray drops a lost node from the cluster; an earlier attempt would wait for the lost node's workers.
_NODE_LOSS_S = 15.0


def train_until_done(
    job: TrainingJob, attempt: Callable[[TrainingJob], None], on_ray: bool, failed_before: int = 0
) -> None:
    """Call `attempt` until an attempt succeeds, fails for good, or `failure.max_failures` failures are used up.

    `failed_before` earlier failures count against that budget. Raises the :class:`EvergreenError` that ends the run;
    the error is `final` when the budget is used up.
    """
    allowed = job.settings.failure.max_failures
    furthest, futile = furthest_step(job.paths), 0
    job = job.model_copy(update={"driver": new_driver()})
    fence: Fence | None = None
    for failures in range(min(failed_before, allowed), allowed + 1):
        if on_ray:
            end_workers(read_beats(job.paths))  # two attempts must not overlap
        _sweep(job)
        fence = _begin_attempt(job, fence)
        job = job.model_copy(update={"attempt": fence.number})
        try:
            _attempt_once(job, attempt, on_ray)
            return _sweep(job)
        except Exception as error:
            known = _noted(job, fence, error, begun=failures > 0 or bool(read_attempts(job.paths)))
            known.final = known.final or failures == allowed
            if not known.transient or known.final or isinstance(known, HeadLostError):
                raise known from error
            log.warning("%s Failure %d of %d allowed; going on.", redact(str(known)), failures + 1, allowed)
        reached = furthest_step(job.paths)
        futile = 0 if reached > furthest else futile + 1
        furthest = max(furthest, reached)
        time.sleep(_pause_s(job, futile))
        if on_ray:
            restart_dead_ray(job.settings)
        # Otherwise the next round would kill the workers of a newer driver.
        _end_for_rival(job, partial(_check_rivals, job, fence))
    return None


def _begin_attempt(job: TrainingJob, before: Fence | None) -> Fence:
    """Start a new attempt, which fences out older attempts: in the run's folder and in its object store.

    `before` is the fence of this driver's attempt before. Raises :class:`RivalDriverError` when another driver begins
    an attempt while this driver waits for the store.
    """
    stored = stored_run(job)
    deadline = time.monotonic() + job.settings.tracking.outage_s
    while stored is not None:
        try:
            number = stored.begin(job.driver, next_attempt(job.paths))
            return Fence.begin(job.paths, job.driver, number)
        except TransientError as error:
            if time.monotonic() > deadline:
                raise
            log.warning("%s; asked again for at most %.0f s", error, deadline - time.monotonic())
            time.sleep(_STORE_PAUSE_S)
            if before is not None:
                before.check_driver()
    return Fence.begin(job.paths, job.driver)


def _check_rivals(job: TrainingJob, fence: Fence) -> None:
    """Raise :class:`RivalDriverError` when another driver trains this run, in this home or by the object store."""
    try:
        if (stored := stored_run(job)) is not None:
            stored.check_driver(fence)
    except RivalDriverError:
        raise
    except TransientError as error:  # the store is away, so whether it knows of a rival can't be found out
        log.debug("%s", error)
    fence.check_driver()  # last, as the store may take minutes to answer


def _attempt_once(job: TrainingJob, attempt: Callable[[TrainingJob], None], on_ray: bool) -> None:
    if on_ray:
        # May take hours, so before the watchdog waits for the workers, and before signals wait for a last checkpoint.
        upload_inputs(job)
    with _stop_on_signals(job, on_ray) as stop_signals:
        if on_ray:
            _supervised(job, attempt, stop_signals)
        else:
            attempt(job)


def _noted(job: TrainingJob, fence: Fence, error: Exception, begun: bool) -> EvergreenError:
    """Classify the error of a failed attempt and append it to the run's failure log."""
    try:
        _check_rivals(job, fence)
        known = _explained(error)
    except RivalDriverError as rival:  # the other driver killed these workers: `error` is only a consequence
        known = rival
    if begun and isinstance(known, NoCapacityError):  # the workers fitted before: nodes are missing now
        known = TransientError(str(known))
    note(job.paths.failures, Failure(number=fence.number, at=time.time(), error=redact(str(known))))
    return known


def _pause_s(job: TrainingJob, futile: int) -> float:
    """Seconds until the next attempt, with jitter: doubled for each of the last `futile` attempts, up to a maximum.

    An attempt is futile when training got no further than before. Other failures do not lengthen the pause: a worker
    that is killed once an hour must not cause a pause of a minute at the tenth time.
    """
    first = _FIRST_PAUSE_S if job.settings.scaling.min_workers is None else _NODE_LOSS_S
    return min(_LONGEST_PAUSE_S, first * 2.0 ** min(futile, 10)) * random.uniform(0.5, 1)


def _sweep(job: TrainingJob) -> None:
    """Remove partly written files of workers that died."""
    for folder in (job.paths.root, job.paths.checkpoints):
        sweep(folder)


def _explained(error: Exception) -> EvergreenError:
    known = classify(error)
    if known is not None:
        return known
    inner = [cause for cause in causes(error) if not type(cause).__module__.startswith("ray.")]
    first = inner[-1] if inner else error
    return TrainingError(f"the training code failed: {type(first).__name__}: {first}{raised_at(first)}")


def _supervised(job: TrainingJob, attempt: Callable[[TrainingJob], None], stop_signals: list[int]) -> None:
    """Run the attempt in another thread and monitor it from this thread, which stays free to handle signals."""
    outcome: list[BaseException] = []

    def work() -> None:
        try:
            attempt(job)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=copy_context().run, args=(work,), name="evergreen-attempt", daemon=True)
    thread.start()
    with HeadWatch(job.settings.ray.address) as head:
        _monitor(job, thread, head, stop_signals)
    if outcome:
        raise outcome[0]
    if stop_signals and thread.is_alive():
        end_workers(read_beats(job.paths))
        raise StopRequestedError("training was stopped; the same command resumes from the newest checkpoint")


def _monitor(job: TrainingJob, thread: threading.Thread, head: HeadWatch, stop_signals: list[int]) -> None:
    """Return when the attempt's thread has ended, or when the time limits of a requested stop have passed.

    Raises :class:`RivalDriverError` for a newer driver, and :class:`TransientError` when the workers are stuck or the
    cluster's head is gone.
    """
    watchdog, limits, relay, notices = Watchdog(job), Deadlines(job), Relay(job.paths), PreemptionPoller(job)
    fence = Fence(job.paths.fence, job.attempt, driver=job.driver)
    while thread.is_alive():
        thread.join(_LOOK_S)
        relay.pump()
        notices.look()
        _end_for_rival(job, fence.check_driver)
        if limits.passed(stop_signals):
            return
        try:
            head.check()
        except TransientError:  # workers on other nodes end with their head, which alone could reach them
            end_workers([beat for beat in read_beats(job.paths) if beat.host == socket.gethostname()])
            raise
        try:
            watchdog.look()
        except TransientError:
            thread.join(UNWIND_S)
            raise


def _end_for_rival(job: TrainingJob, check: Callable[[], None]) -> None:
    """Call `check`; kill the workers of the attempt `job.attempt` when it raises :class:`RivalDriverError`."""
    try:
        check()
    except RivalDriverError:
        end_workers([beat for beat in read_beats(job.paths) if beat.attempt == job.attempt])
        raise


@contextmanager
def _stop_on_signals(job: TrainingJob, on_ray: bool) -> Iterator[list[int]]:
    """In the block, SIGTERM or SIGINT requests a last checkpoint; after it, the previous handler gets the signal.

    Yields the list of received signals. A second signal raises KeyboardInterrupt at once; without Ray, the signal is
    repeated when its time limit has passed. Outside the main thread, which alone receives signals, the list stays
    empty.
    """
    job.paths.stop.unlink(missing_ok=True)
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    arrived: SimpleQueue[int | None] = SimpleQueue()  # `put` is reentrant: a signal handler may call it

    def ask(signum: int, _frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(signum)
        arrived.put(signum)

    limits = None if on_ray else Deadlines(job)  # with Ray, `_supervised` checks the limits
    asking = threading.Thread(
        target=_ask_workers, args=(job, arrived, ask, limits), name="evergreen-stop", daemon=True
    )
    asking.start()
    before = signal.signal(signal.SIGINT, ask)
    try:
        with sigterm_to(ask):
            yield received
    finally:
        signal.signal(signal.SIGINT, before)
        arrived.put(None)
        asking.join()
        job.paths.stop.unlink(missing_ok=True)
        if received:
            signal.raise_signal(received[0])


def _ask_workers(
    job: TrainingJob, arrived: "SimpleQueue[int | None]", receiver: Receiver, limits: Deadlines | None
) -> None:
    """Write the run's file `stop` for each signal in the queue; None in the queue ends the loop.

    When `limits` have passed since the first signal, `receiver` gets no further SIGTERM and the signal is repeated: it
    interrupts the main thread once this thread executes Python code; after SIGTERM, the process is killed in the end.
    """
    received: list[int] = []
    while True:
        try:
            signum = arrived.get(timeout=_LOOK_S if received and limits else None)
        except Empty:
            if limits is None or not limits.passed(received):
                continue
            limits = None
            no_longer_to(receiver)
            signal.pthread_kill(threading.main_thread().ident or 0, received[0])
            continue
        if signum is None:
            return
        received.append(signum)
        log.warning("%s: saving a last checkpoint", signal.Signals(signum).name)
        write_text(job.paths.stop, signal.Signals(signum).name)
