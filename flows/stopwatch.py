"""Measures the parts of a run's wall time, from the start of the command's process or of the flow to the summary."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from training.records import Goodput, Release, TrainedModel

_command_began: ContextVar[float | None] = ContextVar("_command_began", default=None)


@contextmanager
def command_timed() -> Iterator[None]:
    """Measure the flows of the block from the start of this process, which must run only this command."""
    token = _command_began.set(time.perf_counter() - _age_of_process_s())
    try:
        yield
    finally:
        _command_began.reset(token)


@contextmanager
def call_timed() -> Iterator[None]:
    """Measure the flows of the block from the block's start; inside :func:`command_timed`, from the process's start."""
    if _command_began.get() is not None:
        yield
        return
    token = _command_began.set(time.perf_counter())
    try:
        yield
    finally:
        _command_began.reset(token)


def command_seconds() -> float:
    """Seconds since the command or the call began; to be called inside one of the two functions above."""
    began = _command_began.get()
    assert began is not None
    return time.perf_counter() - began


def with_whole_command(release: Release) -> Release:
    """`release` with the seconds of this command so far; the seconds after its flow are the part `command end`."""
    seconds = command_seconds()
    if release.reused:
        return release.model_copy(update={"seconds": seconds})
    after = max(0.0, seconds - release.seconds)
    parts = release.goodput.parts | {"command end": after}
    goodput = Goodput(total_s=release.goodput.total_s + after, parts=parts)
    return release.model_copy(update={"seconds": seconds, "goodput": goodput})


def _age_of_process_s() -> float:
    # Both times are by the kernel's clock since boot; as a time of day, the start is known only to the second.
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf(
        "SC_CLK_TCK"
    )
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


@dataclass
class Stopwatch:
    """Seconds by part of a flow; the part `command start` is the time from the start of its command to the flow."""

    began: float = field(default_factory=time.perf_counter)
    parts: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        command = _command_began.get()
        if command is not None:
            self.parts["command start"] = self.began - command
            self.began = command

    @property
    def elapsed_s(self) -> float:
        """Seconds since the command or the flow began."""
        return time.perf_counter() - self.began

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the block's exclusive seconds to `part`: seconds that nested blocks measure are subtracted."""
        sum_before, start = sum(self.parts.values()), time.perf_counter()
        try:
            yield
        finally:
            inside = sum(self.parts.values()) - sum_before
            self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - start - inside

    def timed(self, release: Release, trained: TrainedModel, trained_before: bool) -> Release:
        """`release` with the seconds so far, by part.

        The part `training` is replaced by the training's own parts; time that belongs to no part is `orchestration`.
        With `trained_before`, an earlier command trained: the parts include the time of that training, `seconds` is
        the time of this command alone.
        """
        parts: dict[str, float] = {}
        for name, seconds in self.parts.items():
            inner = trained.goodput.parts if name == "training" else {name: seconds}
            for inner_name, inner_seconds in inner.items():
                parts[inner_name] = parts.get(inner_name, 0.0) + inner_seconds
        elapsed_s, before_s = self.elapsed_s, trained.goodput.total_s if trained_before else 0.0
        parts["orchestration"] = max(0.0, elapsed_s + before_s - sum(parts.values()))
        goodput = Goodput(total_s=sum(parts.values()), parts=parts)
        return release.model_copy(update={"seconds": elapsed_s, "goodput": goodput})
