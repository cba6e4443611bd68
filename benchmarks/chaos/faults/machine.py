"""Faults of the machine: clock jumps, the same command twice, too little memory, other conditions on resume."""

import resource
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.chaos.faults import IN_PROCESS, IN_SHARDS, ON_RAY, Fault
from benchmarks.chaos.faults.kills import kill_flow_after_checkpoints
from benchmarks.chaos.trial import Trial
from training.errors import EXIT_RESOURCE, EXIT_RETRY

_CGROUPS = Path("/sys/fs/cgroup/memory")
_MB = 1 << 20


def twice_or_clock(trial: Trial) -> None:
    """Run the same command twice at the same time, or make the clock jump forward or back by an hour."""
    trial.pick((_twice, _jump_forth, _jump_back))(trial)


def _twice(trial: Trial) -> None:
    trial.start()
    moment = trial.wait_for_some_moment()
    trial.start()
    trial.hit(f"the same command a second time {moment}", not trial.runs[0].ended)
    trial.expect(EXIT_RETRY)
    if trial.statuses[0] != 0:
        trial.broke("I10", "the first of two is not disturbed", f"statuses {trial.statuses}")


def _jump_forth(trial: Trial) -> None:
    _jump(trial, "+3600")


def _jump_back(trial: Trial) -> None:
    _jump(trial, "-3600")


def _jump(trial: Trial, seconds: str) -> None:
    library = _clock_library(trial.bench.folder)
    if library is None:
        trial.hit(f"clock {seconds} s (there is no C compiler for clock.c)", injected=False)
        trial.start()
        return
    clock = trial.run_log(".clock")
    clock.write_text("0\n")
    trial.start(LD_PRELOAD=str(library), EVERGREEN_CHAOS_CLOCK=str(clock))
    moment = trial.wait_for_some_moment()
    clock.write_text(f"{seconds}\n")
    trial.hit(f"clock {seconds} s {moment}", not trial.run.ended)
    trial.hit_at = None  # the command's clock and this process's clock can't be compared
    trial.expect()


def _clock_library(folder: Path) -> Path | None:
    """Compile clock.c beside this package to a shared library; None without a compiler."""
    made = folder / "clock.so"
    if not made.is_file() and (compiler := shutil.which("cc")):
        source = Path(__file__).parents[1] / "clock.c"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(source)], check=True)
    return made if made.is_file() else None


def lack_of_memory(trial: Trial) -> None:
    """The kernel kills the command for its memory use, or a rank can allocate no more memory."""
    trial.pick((_memory_cgroup, _address_space))(trial)


def _memory_cgroup(trial: Trial) -> None:
    group = _CGROUPS / f"evergreen-chaos-{trial.home.root.parent.name}-{trial.number}"
    try:
        group.mkdir()
    except OSError as error:
        trial.hit(f"a memory cgroup ({error})", injected=False)
        return _address_space(trial)
    trial.stack.callback(_remove_group, group)
    limit = trial.random.randint(150, 500)
    (group / "memory.limit_in_bytes").write_text(str(limit * _MB))
    enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
    trial.start(["sh", "-c", enter, "sh"])
    status = trial.wait()
    killed = "oom_kill 0" not in (group / "memory.oom_control").read_text()
    trial.hit(f"{limit} MB of memory for the flow; status {status}", killed)
    return None


def _remove_group(group: Path) -> None:
    for _ in range(50):
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


def _address_space(trial: Trial) -> None:
    trial.start()
    step = trial.wait_for_some_step()
    beats = trial.beats()
    alive = bool(beats) and not trial.run.ended
    if alive:
        victim = psutil.Process(trial.random.choice(beats).pid)
        limit = victim.memory_info().vms
        victim.rlimit(resource.RLIMIT_AS, (limit, limit))
    trial.hit(f"no more memory for a rank (RLIMIT_AS) at step {step}", alive)
    trial.expect(EXIT_RESOURCE)


def other_conditions(trial: Trial) -> None:
    """SIGKILL the flow at a step; the next start has another number of workers, or of threads.

    With virtual shards the weights must be the same; without, the run must report that they may differ.
    """
    kill_flow_after_checkpoints(trial, 1)
    if trial.kind.virtual_shards:
        trial.settings["scaling.num_workers"] = str(trial.random.choice((1, 4)))
        trial.hit(f"resumed on {trial.settings['scaling.num_workers']} workers instead of 2")
        trial.start()
        return
    trial.hit("resumed with OMP_NUM_THREADS=2")
    trial.start(OMP_NUM_THREADS="2")
    trial.wait()
    if trial.statuses[0] != 0 and "other conditions" not in trial.said():
        trial.broke("I10", "other conditions are said", "no warning was printed")


FAULTS = (
    Fault("F19", "duplicate start, clock jump", twice_or_clock, (IN_PROCESS,)),
    Fault("F20", "out of memory", lack_of_memory, (IN_PROCESS, ON_RAY)),
    Fault(
        "F22",
        "other number of workers or threads on resume",
        other_conditions,
        (IN_SHARDS, IN_PROCESS),
        not_with={
            "xgboost": "Another number of workers makes another run, as the number of workers is in the run key. "
            "XGBoost takes its number of threads from a setting, which is in the run key, too.",
            "lightgbm": "Numbers of workers and of threads are in the run key.",
        },
    ),
)
