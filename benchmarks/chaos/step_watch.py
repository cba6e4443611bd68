"""How far a training is, seen from outside: a resumed one drops the metric points after the step it resumes from."""

import json
import threading
from pathlib import Path

_LOOK_S = 0.05


class StepWatch:
    """Reads the newest metric point of `file` many times a second; `repeated` are the steps of each fall."""

    def __init__(self, file: Path):
        self.file = file
        self.repeated: list[int] = []
        self._newest = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop looking."""
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
    """Step of the last whole line; None when the file is not there."""
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
