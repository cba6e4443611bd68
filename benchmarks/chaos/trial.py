"""One trial: its own home, a fault at a random moment, the same command until it succeeds, and the results."""

import random
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

from benchmarks.chaos import processes
from benchmarks.chaos.bench import Bench, Kind, Reference
from benchmarks.chaos.retraining import HUNG, Retraining
from benchmarks.chaos.step_watch import StepWatch, last_step
from training.attempts.heartbeat import Beat
from training.attempts.history import read_attempts
from training.storage.paths import HOME_VARIABLE, Home, RunPaths

T = TypeVar("T")

MOST_STARTS = 5
_RUN_TIMEOUT_S = 360.0
_WAIT_S = 240.0
_LONGEST_DELAY_S = 3.0


@dataclass
class Trial:
    """The object that a fault acts on: a fault starts the command, does its damage, and calls :meth:`hit`."""

    bench: Bench
    fault: str
    number: int
    seed: int
    kind: Kind
    own_services: bool  # the trial has its own Ray and Prefect server
    random: random.Random
    stack: ExitStack = field(default_factory=ExitStack)
    settings: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    runs: list[Retraining] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    moments: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    hit_at: float | None = None
    # Invariant, name, detail of violations that the fault itself saw.
    notes: list[tuple[str, str, str]] = field(default_factory=list)

    watch: StepWatch | None = None

    @classmethod
    def prepare(
        cls, bench: Bench, fault: str, number: int, seed: int, kind: Kind, own_services: bool
    ) -> "Trial":
        """Create a trial whose home contains the prepared data."""
        draw = random.Random(f"{seed}/{fault}/{number}")
        trial = cls(bench, fault, number, seed, kind, own_services, draw)
        bench.reference(kind)
        trial.fill_home()
        trial.settings = kind.settings
        trial.environment = bench.environment | {HOME_VARIABLE: str(trial.home.root)}
        if own_services:
            trial.settings["ray.num_cpus"] = "2"
            return trial
        trial.environment["PREFECT_API_URL"] = bench.prefect_url
        if kind.workers:
            trial.environment |= bench.ray.environment
            trial.settings["ray.address"] = bench.ray.address
        return trial

    @property
    def home(self) -> Home:
        """The home of this trial."""
        return Home(self.bench.folder / f"{self.fault}-{self.kind.trainer}-{self.number}".lower())

    @property
    def folder(self) -> Path:
        """The working directory of the trial's commands, in which no file may appear."""
        return self.home.root.with_suffix(".cwd")

    @property
    def reference(self) -> Reference:
        """The undisturbed run that this trial's run must equal."""
        return self.bench.reference(self.kind)

    @property
    def paths(self) -> RunPaths:
        """The trial's run; its ingredients, and hence its run key, equal those of the undisturbed run."""
        return RunPaths(self.home.runs(self.kind.workload.recipe) / self.reference.paths.root.name)

    @property
    def run(self) -> Retraining:
        """The command that was started last."""
        return self.runs[-1]

    def fill_home(self) -> None:
        """Copy the prepared data into the home."""
        shutil.copytree(self.bench.template(self.kind), self.home.root, dirs_exist_ok=True)

    def run_log(self, suffix: str = ".log", start: int | None = None) -> Path:
        """File for the output of start number `start` of the command, by default of the next start."""
        number = len(self.runs) + 1 if start is None else start
        return self.bench.folder / f"{self.home.root.name}.{number}{suffix}"

    def start(self, prefix: Sequence[str] = (), **environment: str) -> Retraining:
        """Start the command; `prefix` (a wrapper command) and `environment` apply to this start only."""
        variables = self.environment | environment
        self.folder.mkdir(exist_ok=True)
        log = self.run_log()
        recipe = self.bench.recipe(self.kind)
        made = Retraining(recipe, self.settings, variables, log, self.folder, prefix)
        self.runs.append(made)
        if self.watch is None:
            self.watch = StepWatch(self.paths.metrics)
            self.stack.callback(self.watch.end)
        return self.run

    def finish(self) -> None:
        """Restart the command until it ends with status 0, at most :data:`MOST_STARTS` times in all."""
        while self.wait() != 0 and len(self.statuses) < MOST_STARTS:
            self.start()

    def wait(self) -> int:
        """Wait for the running commands, record their exit statuses and return the last one."""
        for run in self.runs[len(self.statuses) :]:
            status = run.wait(_RUN_TIMEOUT_S)
            self.statuses.append(status)
            if status == HUNG:
                processes.end_all(self.processes())
                self.broke(
                    "I10", "exit", f"start {len(self.statuses)} did not end within {_RUN_TIMEOUT_S:.0f} s"
                )
        return self.statuses[-1]

    def expect(self, *statuses: int) -> None:
        """Wait for the command; its exit status must be one of `statuses`, or 0 if the fault came too late."""
        if (status := self.wait()) not in (0, HUNG, *statuses):
            self.broke("I10", "exit status tells why", f"{status} instead of {statuses}")

    def processes(self) -> list[psutil.Process]:
        """All processes of this home."""
        return processes.with_environment(HOME_VARIABLE, str(self.home.root))

    def on_ray(self) -> list[psutil.Process]:
        """Ray's processes that this trial may hit: those of its own Ray, or of the shared head."""
        return self.processes() if self.own_services else self.bench.ray.processes()

    def beats(self) -> list[Beat]:
        """Heartbeats of the workers that still run, in order of rank."""
        return processes.beating(self.paths)

    def step(self) -> int:
        """The last step that has a metric point."""
        return last_step(self.paths.metrics) or 0

    def wait_for_step(self, step: int) -> bool:
        """Wait for `step`; returns whether the run reached it before the command ended."""
        return self.wait_for(lambda: self.step() >= step)

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Wait for `condition()`; returns whether it became true before the command ended."""
        processes.wait_until(lambda: self.run.ended or condition(), _WAIT_S)
        return condition()

    def pick(self, choices: Sequence[T]) -> T:
        """Choose the variants of a fault in turn, so that a few trials cover all of them."""
        return choices[(self.number - 1) % len(choices)]

    def drawn_without_repeat(self, choices: Sequence[T], variants: int) -> T:
        """Choose at random, without replacement among the trials of one variant (every `variants`-th trial)."""
        order = random.Random(f"{self.seed}/{self.fault}").sample(choices, len(choices))
        return order[(self.number - 1) // variants % len(order)]

    def wait_for_some_step(self, first: int = 1) -> int:
        """Wait for a random step, not earlier than `first`, and return it."""
        step = self.random.randint(first, self.kind.workload.steps - 2)
        self.wait_for_step(step)
        return step

    def wait_for_some_moment(self) -> str:
        """Wait for a random moment - before training, at a step, or after it - and return its description."""
        phase = self.random.choices(("before", "step", "after"), (3, 5, 3))[0]
        if phase == "step":
            return f"at step {self.wait_for_some_step()}"
        # Files that a run creates show its progress, however busy the machine is.
        run = self.paths
        before = {"its start": self.home.root, "the plan": run.ingredients, "the attempt's number": run.fence}
        after = {"the model": run.model, "the evaluation": run.evaluation, "the report": run.report}
        name, sign = self.random.choice(list((before if phase == "before" else after).items()))
        self.wait_for(sign.exists)
        seconds = self.random.random() * _LONGEST_DELAY_S
        time.sleep(seconds)
        return f"{seconds:.1f} s after {name}"

    def hit(self, what: str, injected: bool = True) -> None:
        """Record that the fault has been injected now; `injected` is False if there was nothing left to hit."""
        (self.moments if injected else self.missed).append(what)
        if injected:
            self.hit_at = time.time()

    def broke(self, invariant: str, name: str, detail: str) -> None:
        """Record that the fault itself saw a violated invariant."""
        self.notes.append((invariant, name, detail))

    def said(self) -> str:
        """The output of all starts of the command."""
        return "\n".join(run.log.read_text(errors="replace") for run in self.runs)

    @property
    def recovery_s(self) -> float | None:
        """Seconds from the last fault until the next attempt was ready to train or, without one, until the end."""
        if self.hit_at is None or not self.paths.release.is_file():
            return None
        again = [attempt.ready for attempt in read_attempts(self.paths) if attempt.ready > self.hit_at]
        end = again[0] if again else self.paths.release.stat().st_mtime
        return max(0.0, end - self.hit_at)

    def clean(self) -> None:
        """Kill processes that are left, undo the fault's setup, and remove the home."""
        processes.end_all(self.processes())
        self.stack.close()
        for folder in (self.home.root, self.folder):
            shutil.rmtree(folder, ignore_errors=True)
        for start in range(1, len(self.runs) + 1):
            for suffix in (".log", ".strace", ".injected"):
                self.run_log(suffix, start).unlink(missing_ok=True)

    def logs(self) -> list[Path]:
        """Files with the output of the command, one for each start."""
        return [run.log for run in self.runs]
