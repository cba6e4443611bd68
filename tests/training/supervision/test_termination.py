"""SIGTERM ends a process wherever the main thread is at that moment; each test uses fresh processes."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from training.errors import EXIT_TERMINATED

_PROGRAM = """
import os, signal, subprocess, sys, time
from training.termination import TerminatedError, ended_by_sigterm

def terminate():
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):  # so that the handler has run when this returns
        pass

def work():
{work}

try:
    with ended_by_sigterm(grace_s={grace_s}):
        print("began", flush=True)
        work()
        for _ in range(600):
            time.sleep(0.1)
except TerminatedError:
    print("cleaned up", flush=True)
    sys.exit({status})
"""


def run(work: str, folder: Path, grace_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    program = _PROGRAM.format(
        work=textwrap.indent(textwrap.dedent(work), "    "), grace_s=grace_s, status=EXIT_TERMINATED
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=folder, timeout=500
    )


_DROPPED = {
    "the callback of a weak reference": """
        import weakref
        class Thing: pass
        thing = Thing()
        reference = weakref.ref(thing, lambda _: terminate())
        del thing
        """,
    "a finalizer": """
        class Thing:
            def __del__(self): terminate()
        Thing()
        """,
    "an import that is tried": """
        try:
            import slow_module
        except BaseException:
            pass
        """,
    "code that catches everything": """
        try:
            terminate()
        except BaseException:
            pass
        """,
}


@pytest.mark.parametrize("where", _DROPPED)
def test_a_signal_that_is_dropped_comes_again(where: str, tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(0.5)\n"
    )
    done = run(_DROPPED[where], tmp_path)
    assert (done.returncode, done.stdout.split("\n")[:2]) == (EXIT_TERMINATED, ["began", "cleaned up"]), (
        done.stderr
    )


def test_a_receiver_gets_a_signal_that_an_import_before_has_dropped(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    work = """
        from training.termination import sigterm_to
        import slow_module
        with sigterm_to(lambda signum, _: print("told", signum, flush=True)):
            time.sleep(1)
        """
    done = run(work, tmp_path)
    said = done.stdout.split("\n")
    assert (done.returncode, said[:3]) == (EXIT_TERMINATED, ["began", "told 15", "cleaned up"]), done.stderr


def test_a_signal_in_the_hook_of_logging_at_a_fork_comes_again(tmp_path: Path) -> None:
    """Python prints and drops the exception of a hook; the hook also has to release the lock of `logging`."""
    work = """
        import logging
        class Lock:
            real = logging._lock
            def release(self):
                logging._lock = self.real
                terminate()
                self.real.release()
            def __getattr__(self, name):
                return getattr(self.real, name)
        logging._lock = Lock()
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)
        """
    done = run(work, tmp_path)
    assert (done.returncode, done.stdout.split("\n")[:2]) == (EXIT_TERMINATED, ["began", "cleaned up"])
    assert done.stderr == ""


def test_no_second_exception_meets_the_cleaning_up(tmp_path: Path) -> None:
    work = """
        try:
            terminate()
        finally:
            for _ in range(5):
                terminate()
                time.sleep(0.2)
            print("whole", flush=True)
        """
    done = run(work, tmp_path)
    assert (done.returncode, done.stdout.split()) == (EXIT_TERMINATED, ["began", "whole", "cleaned", "up"])


def test_a_process_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    work = """
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid, flush=True)
        terminate_once = True
        while True:
            try:
                if terminate_once:
                    terminate_once = False
                    terminate()
                time.sleep(1)
            except BaseException:
                pass
        """
    began = time.monotonic()
    done = run(work, tmp_path, grace_s=2.0)
    assert done.returncode == EXIT_TERMINATED
    assert "did not end within 2 s of SIGTERM" in done.stderr
    assert time.monotonic() - began >= 2
    child = int(done.stdout.split()[1])
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.05)  # the kernel ends a killed process when the machine has time
