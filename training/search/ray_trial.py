"""The trainable of Ray Tune: the process of a trial, which trains a run without workers and reports each epoch.

The training is the same as in `evergreen retrain` with `scaling.num_workers=0`: an interrupted training resumes from
the run's newest checkpoint, and a finished training is reused.
"""

import faulthandler
import math
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ray.tune  # noqa: TID253 - imported by the process that runs a search, and by those of its trials
from ray.tune.result import DONE  # noqa: TID253

from training.attempts.heartbeat import STACKS_SIGNAL, read_beats
from training.attempts.log_relay import recorded
from training.attempts.metrics import MetricsFile, Point
from training.errors import EvergreenError, ResourceError, StopRequestedError, TrainingError, classify
from training.redaction import redact
from training.search.hung_trials import note_process
from training.search.progress import LOSS, best_of, epochs_of
from training.search.records import Event, TrialFailure, TrialJob, failure_file, kind_of, stop_file
from training.storage.files import write_text
from training.storage.paths import RunPaths
from training.storage.record_files import write_record
from training.supervision.launch import launch, make_job

TRIAL, NUMBER, JOB = "trial", "number", "job"  # keys of the configuration of a trial
EPOCH, SCORE, INTERRUPTED = "epoch", "score", "interrupted"  # keys of the reports of a trial
_LOOK_S = 0.2


class RayTrial(ray.tune.Trainable):
    """One trial for Ray Tune: each call of :meth:`step` returns at the end of an epoch, or of the training."""

    def setup(self, config: dict[str, Any]) -> None:
        """Start the training in a separate thread, so that the main thread can answer Ray Tune."""
        self._job = TrialJob.model_validate_json(config[TRIAL][JOB])
        self._paths: RunPaths = self._job.plan.paths
        self._tail = MetricsFile(self._paths.metrics).tail()
        self._ends: list[Point] = []
        self._reported: dict[str, Any] = {EPOCH: 0, SCORE: math.inf}
        self._error: BaseException | None = None
        note_process(self._job, ray.get_runtime_context().get_node_id())
        self._paths.stacks.mkdir(parents=True, exist_ok=True)
        self._stacks = (self._paths.stacks / "rank-0.txt").open("w")
        faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True)
        self._training = threading.Thread(target=self._train, name="evergreen-trial", daemon=True)
        self._training.start()

    def step(self) -> dict[str, Any]:
        """Wait until an epoch or the training ends; returns the report for Ray Tune.

        Raises the error that ended the training, unless the error is a request to stop.
        """
        while self._training.is_alive():
            self._training.join(_LOOK_S)
            if stop_file(Path(self._job.folder)).exists():
                self._stop()
            elif (report := self._next(last=False)) is not None:
                return report
        if isinstance(self._error, StopRequestedError):
            return self._reported | {DONE: True, INTERRUPTED: True}
        if self._error is not None:
            self._note(self._error)
            raise self._error
        return self._next(last=True) or self._reported | {DONE: True}

    def cleanup(self) -> None:
        """End the training; Ray Tune calls this method when the trial has ended, and to stop a trial early."""
        self._stop()

    def _stop(self) -> None:
        """Ask the training to save a last checkpoint and to end.

        Waits at most `failure.stop_timeout_s` seconds after the request, and after each byte of the checkpoint.
        """
        limit, moved = self._job.plan.settings.failure.stop_timeout_s, self._moved()
        deadline = time.monotonic() + limit
        while self._training.is_alive():
            if (now := self._moved()) != moved:
                deadline, moved = time.monotonic() + limit, now
            elif time.monotonic() >= deadline:
                break
            # Write the request repeatedly: a training that starts removes earlier requests.
            write_text(self._paths.stop, "search", durable=False)
            self._training.join(_LOOK_S)
        self._paths.stop.unlink(missing_ok=True)

    def _moved(self) -> int:
        """Bytes that the training has written or transferred."""
        return sum(beat.moved for beat in read_beats(self._paths))

    def _next(self, last: bool) -> dict[str, Any] | None:
        """Report of the next epoch, or None if there is no new epoch.

        Ray Tune may stop a trial at any report. So the last epoch is reported only when the model has been written;
        otherwise the trial could be stopped before that.
        """
        self._ends += [point for point in self._tail.new() if LOSS in point.values]
        known = [point for point in self._ends if last or point.step < point.total_steps]
        epochs = epochs_of(known, self._job.metric)
        new = sorted({epoch.number for epoch in epochs if epoch.number > self._reported[EPOCH]})
        if not new:
            return None
        number = next((number for number in new if number in self._job.rungs), new[-1])
        keeps_best = self._job.plan.settings.training.keeps_best
        best = best_of([epoch for epoch in epochs if epoch.number <= number], keeps_best).best
        assert best is not None
        self._reported = {EPOCH: number, SCORE: best.loss}
        return dict(self._reported)  # a copy: Ray Tune adds entries to the report

    def _train(self) -> None:
        job, plan = self._job, self._job.plan
        try:
            with recorded(self._paths.logs / "rank-0.jsonl"):
                launch(
                    make_job(plan.run_key, plan.paths, plan.recipe, plan.settings, job.version, plan.initial)
                )
        except BaseException as error:
            self._error = error

    def _note(self, error: BaseException) -> None:
        known = classify(error) or EvergreenError(f"{type(error).__name__}: {error}")
        failure = TrialFailure(
            error=redact(str(known)),
            transient=not isinstance(known, TrainingError),
            may_pass=known.transient or isinstance(known, ResourceError),
            kind=kind_of(known),
            run_key=self._job.plan.run_key,
        )
        folder = Path(self._job.folder)
        write_record(failure_file(folder, self._job.number), failure, folder.name)


class Listener(ray.tune.Callback):
    """Callback of Ray Tune, in the process of the search, that puts the events of all trials into the queue `events`.

    Ray Tune calls all methods with keyword arguments.
    """

    def __init__(self, events: "SimpleQueue[Event]"):
        self._events = events

    def on_trial_start(self, *_: Any, trial: Any, **__: Any) -> None:  # type: ignore[override]
        """See :class:`ray.tune.Callback`."""
        self._events.put(Event(_number(trial), "started"))

    def on_trial_result(self, *_: Any, trial: Any, result: dict[str, Any], **__: Any) -> None:  # type: ignore[override]
        """See :class:`ray.tune.Callback`."""
        self._events.put(Event(_number(trial), "epoch", epoch=result[EPOCH]))

    def on_trial_complete(self, *_: Any, trial: Any, **__: Any) -> None:  # type: ignore[override]
        """See :class:`ray.tune.Callback`; also called when the scheduler ends a trial."""
        interrupted = INTERRUPTED in (trial.last_result or {})
        self._events.put(Event(_number(trial), "ended", interrupted=interrupted))

    def on_trial_error(self, *_: Any, trial: Any, **__: Any) -> None:  # type: ignore[override]
        """See :class:`ray.tune.Callback`."""
        self._events.put(Event(_number(trial), "ended", crashed=True))

    def __getstate__(self) -> dict[str, Any]:
        """Return an empty state: Ray Tune pickles its callbacks, and the queue must stay in this process."""
        return {}


def _number(trial: Any) -> int:
    number: int = trial.config[TRIAL][NUMBER]
    return number
