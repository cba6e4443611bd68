"""Files that create a mark when code in them is executed, and a check that they really do."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


class Bomb:
    """An object that creates the file `mark` when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


def armed(mark: Path) -> bytes:
    """A pickle that creates `mark` when it is loaded."""
    return pickle.dumps(Bomb(mark), protocol=2)


def goes_off(mark: Path, program: str, *arguments: str, **environment: str) -> bool:
    """Whether `program`, run by plain Python without Evergreen, creates the mark; removes the mark afterwards."""
    command = [sys.executable, "-c", program, *arguments]
    subprocess.run(command, env=os.environ | environment, capture_output=True, check=False, timeout=120)
    marked = mark.exists()
    mark.unlink(missing_ok=True)
    return marked
