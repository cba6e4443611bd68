"""SIGTERM at any moment of a command: it ends soon, with its exit status, without processes and locks left."""

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from ray_hooks import needs_hook
from small_runs import write_recipe

from training.errors import EXIT_OK, EXIT_TERMINATED
from training.storage.paths import Home
from training.storage.run_lock import run_lock

_SEED = 25
_LONGEST_S = 240.0  # twice the command's own time limit, for a busy machine
_OF_START_UP = (0.6, 8.0)  # range of CPU seconds of the command's own process; a whole run takes about 12
_SETTINGS = [
    "training.epochs=2",
    "scaling.num_workers=1",
    "scaling.use_gpu=no",
    "ray.num_cpus=1",
    "ray.object_store_mb=80",
    "tracking.system_metrics=false",
]


def moments(count: int, seed: int) -> list[float]:
    """Random CPU times at which to send the signal; unlike wall times, they don't depend on the machine's load."""
    drawn = random.Random(seed)
    return [round(drawn.uniform(*_OF_START_UP), 2) for _ in range(count)]


def started(home: Home, folder: Path) -> "subprocess.Popen[str]":
    options = [word for setting in _SETTINGS for word in ("--set", setting)]
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli.main", "retrain", write_recipe(folder), *options],
        env=os.environ | {"EVERGREEN_HOME": str(home.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def when_used(process: "subprocess.Popen[str]", cpu_s: float) -> list[psutil.Process]:
    """Wait until the process has used `cpu_s` seconds of CPU time; returns it and all its descendants."""
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        used = watched.cpu_times()
        if used.user + used.system >= cpu_s:
            return [watched, *watched.children(recursive=True)]
        time.sleep(0.01)
    return []


def terminated_at(cpu_s: float, home: Home, folder: Path) -> None:
    process = started(home, folder)
    family = when_used(process, cpu_s)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=_LONGEST_S)
    finished = any(home.runs("plain").glob("*/release.json"))
    # After the command's end, Python itself may end by the signal.
    expected = {EXIT_TERMINATED} if not finished else {EXIT_TERMINATED, EXIT_OK, -signal.SIGTERM}
    assert process.returncode in expected, f"after {cpu_s} s of CPU time\n{said}"
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(family, timeout=_LONGEST_S)
    assert alive == []
    with run_lock(home, "plain"):
        pass


at_any_moment = needs_hook(
    "sigterm_kept", "a SIGTERM while Ray starts ends the process with status 15 or a traceback"
)


@pytest.mark.extended
@at_any_moment
@pytest.mark.parametrize("cpu_s", moments(1, _SEED))
def test_a_command_ends_at_any_moment_of_its_start(cpu_s: float, home: Home, tmp_path: Path) -> None:
    terminated_at(cpu_s, home, tmp_path)


@pytest.mark.slow
@at_any_moment
@pytest.mark.parametrize("cpu_s", moments(16, _SEED + 1))
def test_a_command_ends_at_many_moments(cpu_s: float, home: Home, tmp_path: Path) -> None:
    terminated_at(cpu_s, home, tmp_path)


_WAITS = """
import signal
import time
from flows.cli import main
from training.termination import sigterm_to

asked = []

def ask(signum, frame):  # as a training that saves a last checkpoint, and that a second signal would end at once
    asked.append(signum)

def wait(_):
    with sigterm_to(ask):
        print("ready", flush=True)
        while not asked:
            time.sleep(0.1)
        time.sleep(1)
    assert asked == [signal.SIGTERM]
    signal.raise_signal(signal.SIGTERM)

main._run = wait
raise SystemExit(main.main([]))
"""


@pytest.mark.parametrize("ignored", [False, True], ids=["a terminal", "nohup"])
def test_a_lost_terminal_ends_a_command_in_order_unless_hangups_are_ignored(ignored: bool) -> None:
    start = ("nohup",) if ignored else ()
    process = subprocess.Popen(
        [*start, sys.executable, "-c", _WAITS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # The tests themselves may run by nohup.
        preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(2):  # from the shell, and from the kernel
        process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
    if ignored:
        time.sleep(1)
        assert process.poll() is None
        process.terminate()
    _, said = process.communicate(timeout=_LONGEST_S)
    assert process.returncode == EXIT_TERMINATED
    assert "terminated; the same command resumes where it stopped" in said
