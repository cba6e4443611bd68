"""SIGKILL ranks of a training one after the other, and time each recovery until the next step (P10, P16).

Victims and moments are drawn from a seed; what a victim is doing at that moment is not. Moments are stratified: the
pause is split into `count` equal parts, and each part gets one kill, in random order, so that the mean of few kills
is close to the mean of many.
"""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos.processes import beating
from training.attempts.history import read_attempts
from training.storage.paths import RunPaths

LONGEST_S = 120.0  # a kill after which training has not gone on by then counts as not recovered
PAUSE_S = (0.5, 2.0)  # seconds of resumed training before the next kill
_LOOK_S = 0.02
_TAIL_BYTES = 4096


@dataclass
class Killer:
    """Kills `count` ranks of the run in `paths`, each at a random time after a start; `seconds` has recovery times."""

    paths: RunPaths
    count: int
    seed: int
    longest_s: float = LONGEST_S
    pause_s: tuple[float, float] = PAUSE_S
    seconds: list[float | None] = field(default_factory=list)

    def start(self, then: Callable[[], None] = lambda: None) -> threading.Thread:
        """Kill in a background thread; calls `then` after the last recovery."""

        def work() -> None:
            draw = random.Random(self.seed)
            for pause_s in pauses(draw, self.count, self.pause_s):
                self.seconds.append(self._kill(draw, pause_s))
                if self.seconds[-1] is None:
                    break
            then()

        thread = threading.Thread(target=work, name="killer", daemon=True)
        thread.start()
        return thread

    def _kill(self, draw: random.Random, pause_s: float) -> float | None:
        """Kill one rank; returns the seconds until the next step, or None if there is none within `longest_s`."""
        began = self._wait(lambda: self._step_after(0.0))
        if began is None:
            return None
        time.sleep(pause_s)
        victims = beating(self.paths)
        while len(victims) < 2:
            time.sleep(_LOOK_S)
            victims = beating(self.paths)
        attempts = len(read_attempts(self.paths))
        killed_at = time.time()
        os.kill(victims[draw.randrange(len(victims))].pid, signal.SIGKILL)

        def next_step() -> float | None:
            later = read_attempts(self.paths)[attempts:]
            return self._step_after(max(killed_at, later[-1].ready)) if later else None

        stepped_at = self._wait(next_step)
        return None if stepped_at is None else stepped_at - killed_at

    def _step_after(self, moment: float) -> float | None:
        """Time of the newest step if it is later than `moment`, else None."""
        at = newest_step_at(self.paths.metrics)
        return at if at is not None and at > moment else None

    def _wait(self, step_time: Callable[[], float | None]) -> float | None:
        deadline = time.monotonic() + self.longest_s
        while time.monotonic() < deadline:
            if (value := step_time()) is not None:
                return value
            time.sleep(_LOOK_S)
        return None


def pauses(draw: random.Random, count: int, between: tuple[float, float]) -> list[float]:
    """Stratified sample of `count` pauses: one from each equal part of the interval, in random order."""
    low, part = between[0], (between[1] - between[0]) / count
    sample = [low + part * (number + draw.random()) for number in range(count)]
    draw.shuffle(sample)
    return sample


def newest_step_at(file: Path) -> float | None:
    """Time `at` of the last complete line that has such a field; None if there is none."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            lines = stream.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return float(json.loads(line)["at"])
        except (ValueError, KeyError, TypeError):
            continue
    return None


def recovered(seconds: list[float | None]) -> list[float]:
    """The durations of successful recoveries."""
    return [duration for duration in seconds if duration is not None]
