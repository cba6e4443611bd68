"""Progress of a training for people: a bar in a terminal, telemetry lines in the log, an artifact in Prefect.

A training that resumes after a crash also has points from before the crash. They were shown then and are skipped.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tasks.run_words import RunWords
from training.attempts.metrics import Point

log = logging.getLogger("evergreen.train")

_SPEEDS = ("speed/images_per_s", "speed/rows_per_s")


@cache
def terminal() -> Any:
    """The single `rich` console on standard error: log lines written through it appear above the bar, not in it."""
    from tasks.terminal.console import PrintableConsole

    return PrintableConsole(stderr=True)


def telemetry(point: Point, epochs: int, eta_s: float | None, words: RunWords) -> str:
    """The state of a training on one line."""
    values, metric = point.values, words.metric
    validated = f"validation/{metric}" in values  # then each step is an epoch
    steps = "" if validated else f"step {point.step}/{point.total_steps}  "
    text = (
        f"{_epoch(point, epochs, words)}  {steps}"
        f"{100 * point.step / max(1, point.total_steps):3.0f}%  loss {_number(values['train/loss'])}  "
        f"{words.metric_word} {_number(values[f'train/{metric}'])}  {_speed(values, words)}  "
        f"data wait {100 * values['speed/data_wait_share']:.0f}%  ETA {_clock(eta_s)}"
    )
    if validated:
        text += f"  validation {words.metric_word} {_number(values[f'validation/{metric}'])}"
    return text


def _epoch(point: Point, epochs: int, words: RunWords) -> str:
    """The epoch of a point, and the number of epochs: `total_steps` where each step is an epoch."""
    each_step = {"train/loss", "validation/loss"} <= point.values.keys()  # then each step is an epoch
    return f"{words.trainer.epoch} {point.epoch}/{point.total_steps if each_step else epochs}"


def _number(value: float, decimals: int = 4) -> str:
    """`value` with `decimals` decimals; from 100 on with one decimal."""
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.{decimals}f}"


def _speed(values: dict[str, float], words: RunWords) -> str:
    """Rows a second. A trainer's points count images or rows, in both cases the rows of the dataset."""
    speed = next(value for name, value in values.items() if name in _SPEEDS)
    return f"{speed:,.0f} {words.row}s/s"


@dataclass
class TelemetryLog:
    """Logs a line for a metric point, at most one every `interval_s` seconds, and one for each epoch's validation.

    A trainer of which each step is an epoch has both in one point, and gets one line for it.
    """

    epochs: int
    words: RunWords = field(default_factory=RunWords)
    interval_s: float = 5.0
    _last: float = 0.0
    _first: Point | None = None
    _newest: int = 0

    def __call__(self, point: Point) -> None:
        """Receive a new point."""
        if "train/loss" not in point.values:
            log.info(
                "%s %d/%d  validation loss %s  %s %s",
                self.words.trainer.epoch,
                point.epoch,
                self.epochs,
                _number(point.values["validation/loss"]),
                self.words.metric_word,
                _number(point.values[f"validation/{self.words.metric}"]),
            )
            return
        # After a restart of the workers, the speed is measured from here: the time without steps must not count.
        if self._first is None or point.step <= self._newest:
            self._first = point
        self._newest = point.step
        now = time.monotonic()
        if now - self._last >= self.interval_s or point.step == point.total_steps:
            self._last = now
            log.info("%s", telemetry(point, self.epochs, _eta(self._first, point), self.words))


@dataclass
class Bar:
    """A progress bar on the terminal, shown while the block of :meth:`shown` runs."""

    epochs: int
    words: RunWords = field(default_factory=RunWords)
    _progress: Any = None
    _task: Any = None
    _state: dict[str, str] = field(default_factory=lambda: {"loss": "-", "metric": "-"})

    @contextmanager
    def shown(self, console: Any) -> Iterator["Bar"]:
        """Draw the bar on `console` (a `rich.console.Console`) while the block runs."""
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("  [bold]training[/] {task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[telemetry]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as self._progress:
            self._task = self._progress.add_task("starting workers", total=None, telemetry="")
            yield self
        self._progress = None

    def __call__(self, point: Point) -> None:
        """Receive a new point."""
        if self._progress is None:
            return
        if "train/loss" in point.values:
            self._state["loss"] = _number(point.values["train/loss"], 3)
            self._state["speed"] = _speed(point.values, self.words)
        if (metric := point.values.get(f"validation/{self.words.metric}")) is not None:
            self._state["metric"] = _number(metric, 3)
        text = (
            f"loss {self._state['loss']}  val. {self.words.metric_word} {self._state['metric']}  "
            f"{self._state.get('speed', '')}"
        )
        self._progress.update(
            self._task,
            completed=point.step,
            total=point.total_steps,
            description=_epoch(point, self.epochs, self.words),
            telemetry=text,
        )


@dataclass
class ProgressArtifact:
    """A progress bar in Prefect's UI, updated once per epoch.

    A separate thread sends the updates: when the server is unavailable, Prefect's client retries for a minute, and
    metrics must not wait for that.
    """

    _key: str
    _percent: float = 0.0
    _sent: float | None = None
    _id: Any = None
    _thread: threading.Thread | None = None

    def __call__(self, point: Point) -> None:
        """Receive a point; only points with validation metrics, at the end of an epoch, update the bar."""
        if "validation/loss" not in point.values:
            return
        self._percent = 100 * point.step / max(1, point.total_steps)
        if self._thread is None or not self._thread.is_alive():
            run = copy_context().run  # in the same context, so that the artifact belongs to this task run
            self._thread = threading.Thread(
                target=run, args=(self._send,), name="evergreen-artifact", daemon=True
            )
            self._thread.start()

    def _send(self) -> None:
        from prefect.artifacts import create_progress_artifact, update_progress_artifact

        try:
            while self._sent != (percent := self._percent):
                if self._id is None:
                    text = "Training steps done"
                    self._id = create_progress_artifact(percent, key=self._key, description=text)
                else:
                    update_progress_artifact(self._id, percent)
                self._sent = percent
        except Exception as error:  # an error of a display must not end the training
            log.debug("Prefect does not take the progress now (%s)", error)


def _eta(first: Point, now: Point) -> float | None:
    done = now.step - first.step
    return (now.total_steps - now.step) * (now.at - first.at) / done if done else None


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
