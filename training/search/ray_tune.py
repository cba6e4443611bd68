"""Run the trials of a search on Ray Tune, several at a time; the scheduler ASHA ends worse trials early.

Ray Tune only chooses when a trial starts, and which trials end early. Evergreen itself records the values of the trials
and their results, from which an interrupted search continues, so Ray Tune's files are temporary.
"""

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from training.attempts.heartbeat import read_beats
from training.errors import TransientError, classify
from training.ray_cluster.capacity import check_fits_a_node, workers_with_gpus
from training.ray_cluster.cluster import HeadWatch, RayLostError, check_node
from training.search.hung_trials import HungTrials
from training.search.records import Event, Scheduler, TrialJob, stop_file
from training.storage.files import write_text
from training.termination import sigterm_to

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler

log = logging.getLogger("evergreen.search")

REDUCTION = 3  # of the trials that reach a rung, ASHA lets the best third continue
_FIRST_RUNG_SHARE = 9  # the first rung is a ninth of the epochs
_LOOK_S = 0.5
_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no CSV, JSON and TensorBoard files of each trial
    "RAY_AIR_NEW_OUTPUT": "0",  # the newer output prints some tables even when it is silent
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # Evergreen reports these errors
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_FORCE_TRIAL_CLEANUP_S": "600",
}


def rungs_of(epochs: int) -> tuple[int, ...]:
    """Rungs of ASHA: the epochs at which ASHA compares trials of at most `epochs` epochs.

    The first rung is a ninth of the epochs, but at least 1; each further rung is at three times as many epochs.
    """
    first = max(1, epochs // _FIRST_RUNG_SHARE)
    rungs = []
    while first <= epochs:
        rungs.append(first)
        first *= REDUCTION
    return tuple(rungs)


def run_trials(
    jobs: Sequence[TrialJob],
    folder: Path,
    scheduler: Scheduler,
    concurrent: int | None,
    listener: Callable[[Event], None],
) -> None:
    """Run the trials of `jobs`, at most `concurrent` at a time; returns when all trials have ended.

    Needs a connection to Ray. `listener` is called with each event in the caller's thread, and may be slow. When an
    exception such as Ctrl-C ends the wait, running trials save a last checkpoint before the exception reaches the
    caller. When Ray Tune itself fails, raises the :class:`training.errors.EvergreenError` that explains the failure, or
    :class:`TransientError` if the failure is not a known one. Raises :class:`RayLostError` when a process of a local
    Ray died, or when the head at `ray.address` has not answered for 30 seconds: Ray Tune would wait for ever.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    outcome: list[BaseException] = []
    stop_file(folder).unlink(missing_ok=True)

    def work() -> None:
        try:
            _tune(jobs, folder, scheduler, concurrent, events)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=copy_context().run, args=(work,), name="evergreen-search", daemon=True)
    thread.start()
    running: set[int] = set()
    hung = HungTrials(jobs)
    address = jobs[0].plan.settings.ray.address if jobs else None
    with HeadWatch(address) as head, _stopped_with_checkpoint(folder, jobs, running, events):
        while thread.is_alive():
            head.check()
            check_node()
            thread.join(_LOOK_S)
            for event in _waiting(events, running):
                listener(event)
            hung.look(running)
        for event in _waiting(events, running):
            listener(event)
    if outcome:
        raise classify(outcome[0]) or TransientError(
            f"Ray Tune failed ({type(outcome[0]).__name__}: {outcome[0]}). Run the same command again: it continues."
        ) from outcome[0]


@contextmanager
def _stopped_with_checkpoint(
    folder: Path, jobs: Sequence[TrialJob], running: set[int], events: "SimpleQueue[Event]"
) -> Iterator[None]:
    """When the block raises an exception, ask the `running` trials to stop, and wait until these trials have ended.

    When Ray is lost, the trials' processes end by themselves.
    """
    try:
        yield
    except RayLostError:  # nothing says when a trial has ended
        raise
    except BaseException:
        write_text(stop_file(folder), "interrupted")
        log.warning("stopping the search: running trials save a last checkpoint")
        limit = max((job.plan.settings.failure.stop_timeout_s for job in jobs), default=0.0)
        deadline, asked, moved = time.monotonic() + limit, set(running), _moved(jobs)
        with _not_killed_meanwhile():
            while asked & running and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
                if (now := _moved(jobs)) != moved:  # a checkpoint is being written
                    deadline, moved = time.monotonic() + limit, now
                for _ in _waiting(events, running):
                    pass
        raise
    finally:
        stop_file(folder).unlink(missing_ok=True)


def _not_killed_meanwhile() -> AbstractContextManager[None]:
    """In the block, ignore SIGTERM, and pause the time limit after which an earlier SIGTERM kills this process."""
    is_main = threading.current_thread() is threading.main_thread()
    return sigterm_to(lambda _signum, _frame: None) if is_main else nullcontext()


def _moved(jobs: Sequence[TrialJob]) -> int:
    """Bytes that the trials have written or transferred."""
    return sum(beat.moved for job in jobs for beat in read_beats(job.plan.paths))


def _waiting(events: "SimpleQueue[Event]", running: set[int]) -> Iterator[Event]:
    """Yield the queued events, and keep `running`, the numbers of the running trials, up to date."""
    while True:
        try:
            event = events.get_nowait()
        except Empty:
            return
        if event.what == "started":
            running.add(event.number)
        elif event.what == "ended":
            running.discard(event.number)
        yield event


def _tune(
    jobs: Sequence[TrialJob],
    folder: Path,
    scheduler: Scheduler,
    concurrent: int | None,
    events: "SimpleQueue[Event]",
) -> None:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray.tune

    from training.search.ray_trial import JOB, NUMBER, TRIAL, Listener, RayTrial

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # failed trials are reported by Evergreen
    storage = folder / "ray"  # Ray Tune's own record of the search, which Evergreen does not read
    shutil.rmtree(storage, ignore_errors=True)
    try:
        ray.tune.Tuner(
            ray.tune.with_resources(RayTrial, _resources(jobs[0])),
            param_space={
                TRIAL: ray.tune.grid_search(
                    [{NUMBER: job.number, JOB: job.model_dump_json()} for job in jobs]
                )
            },
            tune_config=ray.tune.TuneConfig(
                scheduler=_scheduler(scheduler, jobs),
                max_concurrent_trials=concurrent,
                trial_dirname_creator=lambda trial: f"trial-{trial.config[TRIAL][NUMBER]}",
            ),
            run_config=ray.tune.RunConfig(
                name="search",
                storage_path=str(storage),
                verbose=0,
                callbacks=[Listener(events)],
                # Evergreen saves its own checkpoints.
                checkpoint_config=ray.tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()
    finally:
        shutil.rmtree(storage, ignore_errors=True)


def _resources(job: TrialJob) -> dict[str, float]:
    """Resources of a trial's process: those of a worker, with GPUs if a node has `scaling.gpus_per_worker`.

    Raises :class:`NoCapacityError` if no node has as much: Ray Tune would wait for such a node without an error.
    """
    options = job.plan.settings.scaling
    can = options.use_gpu != "no" and job.plan.settings.training.can_use_gpus
    on_gpus = can and workers_with_gpus(options) > 0
    cpus, gpus = options.cpus_per_worker or 1.0, options.gpus_per_worker if on_gpus else 0.0
    check_fits_a_node(cpus, gpus)
    return {"CPU": cpus} | ({"GPU": gpus} if gpus else {})


def _scheduler(scheduler: Scheduler, jobs: Sequence[TrialJob]) -> "TrialScheduler":
    from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler

    from training.search.ray_trial import EPOCH, SCORE

    if scheduler != "asha":  # a generation of population-based training ends when all its trials have ended
        return FIFOScheduler()
    return AsyncHyperBandScheduler(
        time_attr=EPOCH,
        metric=SCORE,
        mode="min",
        # The trials of an earlier command may have had more epochs than those that are left.
        max_t=max(*(job.plan.settings.epochs for job in jobs), jobs[0].rungs[-1]),
        grace_period=jobs[0].rungs[0],
        reduction_factor=REDUCTION,
        stop_last_trials=False,  # a trial that has trained all its epochs writes its model
    )
