"""Progress of a training from its metrics file; a resumed training removes the points after the resumption's step."""

import json
import threading
from pathlib import Path

_LOOK_S = 0.05


class StepWatch:
    """Polls the newest metric point of `file`; `repeated` has the number of repeated steps of each resumption."""

    def __init__(self, file: Path):
        self.file = file
        self.repeated: list[int] = []
        self._newest = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop polling."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(_LOOK_S):
            step = last_step(self.file)
            if step is None:
                continue
            if step < self._newest:
                self.repeated.append(self._newest - step)
            self._newest = step


def last_step(file: Path) -> int | None:
    """Step of the last complete line; 0 without a complete line, None without a file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0
