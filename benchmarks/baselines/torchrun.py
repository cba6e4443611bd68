"""Start a module under `torchrun` on this machine."""

import subprocess
import sys
from collections.abc import Sequence


def torchrun(module: str, arguments: Sequence[str], processes: int = 2, max_restarts: int = 0) -> list[str]:
    """The command line that starts `module` under torchrun."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
        f"--max-restarts={max_restarts}",
        "-m",
        module,
        *arguments,
    ]


def run(module: str, arguments: Sequence[str], processes: int = 2) -> None:
    """Run the module to its end. Raises CalledProcessError if it fails."""
    subprocess.run(torchrun(module, arguments, processes), check=True, stdin=subprocess.DEVNULL)
