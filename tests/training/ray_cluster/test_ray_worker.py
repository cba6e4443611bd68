"""What a worker leaves on its machine."""

import subprocess
import sys
from pathlib import Path

_KILLED = """
import multiprocessing.util, os, signal
from torch.utils.data import DataLoader
from training.ray_cluster.ray_worker import _sockets_removed
with _sockets_removed():
    print(multiprocessing.util.get_temp_dir(), len(list(DataLoader(range(8), num_workers=1))), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_ray_kills_leaves_no_folder_of_its_loader_processes() -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True)
    folder, batches = done.stdout.split()
    assert (batches, done.returncode) == ("8", -9)
    assert "pymp-" in folder
    assert not Path(folder).exists()
