"""Relay of the workers' warnings to the driver's log: otherwise only Ray's own log files hold them."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.storage.paths import RunPaths

_LOGGERS = ("evergreen", "py.warnings")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"level": record.levelno, "name": record.name, "text": record.getMessage()})


@contextmanager
def recorded(file: Path) -> Iterator[None]:
    """Within the block, write this process's Python warnings and Evergreen's log to `file`, as JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(file)
    handler.setFormatter(_JsonLines())
    logging.captureWarnings(capture=True)
    warnings.simplefilter("default")  # report each warning once per location
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(handler)
    logging.getLogger("evergreen").setLevel(logging.INFO)
    try:
        yield
    finally:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(handler)
        handler.close()


@dataclass
class Relay:
    """Logs the workers' warnings in the driver; each text is logged once, even if several workers log it."""

    paths: RunPaths
    _read: dict[Path, int] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._read = {file: file.stat().st_size for file in self._files()}

    def pump(self) -> None:
        """Log the warnings written since the last call, or since this object was created."""
        for file in self._files():
            with file.open("rb") as stream:
                stream.seek(self._read.get(file, 0))
                new = stream.read()
            whole = new[: new.rfind(b"\n") + 1]  # a worker is still writing the rest
            self._read[file] = self._read.get(file, 0) + len(whole)
            for line in whole.splitlines():
                # A damaged log must not end a training.
                with suppress(ValueError, KeyError, TypeError):
                    self._say(file.stem, json.loads(line))

    def _files(self) -> list[Path]:
        return sorted(self.paths.logs.glob("rank-*.jsonl"))

    def _say(self, worker: str, record: dict[str, Any]) -> None:
        if record["level"] < logging.WARNING or record["text"] in self._said:
            return
        self._said.add(record["text"])
        logger = logging.getLogger("evergreen.worker" if record["name"] == "py.warnings" else record["name"])
        logger.log(record["level"], "%s: %s", worker, str(record["text"]).strip())
