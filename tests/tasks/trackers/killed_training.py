"""A process that trains, and is killed while its tracker is open."""

import subprocess
import sys
from pathlib import Path

import psutil

TRAINING = """
import sys, time
from pathlib import Path
from tasks.trackers.base import RunInfo
from tasks.trackers.own_process import OwnProcess
from training.attempts.metrics import Point

tracker = OwnProcess(sys.argv[2])
tracker.begin(RunInfo("digits", "a" * 64, Path(sys.argv[1]), {}))
tracker.points([Point(step=step, total_steps=2, epoch=1, at=1.8e9 + step, values={"loss": 1.0}) for step in (1, 2)])
print("sent", flush=True)
time.sleep(3600)
"""


def kill_a_training(folder: Path, tracker: str) -> None:
    """Kill a process whose tracker has got two points, and wait until the processes that it started have ended."""
    command = [sys.executable, "-c", TRAINING, str(folder), tracker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        assert training.stdout.readline() == "sent\n"
        started = psutil.Process(training.pid).children(recursive=True)
        assert started
        training.kill()
    _, left = psutil.wait_procs(started, timeout=120)
    assert not left
