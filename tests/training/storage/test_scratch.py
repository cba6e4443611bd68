"""Temporary folders of killed processes go at the next start on the node; those of live processes stay."""

import signal
import subprocess
import sys
from pathlib import Path

from training.storage.files import temporary_folder
from training.storage.scratch import scratch_folder

_HOLD = """
import time
from training.storage.scratch import scratch_folder
with scratch_folder("worker") as folder:
    (folder / "checkpoint").write_text("bytes")
    print(folder, flush=True)
    time.sleep(1000)
"""


def holder() -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen([sys.executable, "-c", _HOLD], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_only_folders_of_dead_processes_are_removed(own_tmp: Path) -> None:
    killed, left = holder()
    living, held = holder()
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (left / "checkpoint").is_file()
        with temporary_folder("worker") as without_lock, temporary_folder("other") as other:
            (own_tmp / "evergreen-worker-1-link").symlink_to(held)
            with scratch_folder("worker") as mine:
                assert mine.parent == own_tmp
                assert not left.exists()
                assert (held / "checkpoint").is_file()
                assert without_lock.is_dir()
                assert other.is_dir()
        assert not mine.exists()
    finally:
        living.kill()
        living.wait()
