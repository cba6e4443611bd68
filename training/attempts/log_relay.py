"""Warnings of the workers reach the driver's log: Ray keeps their output in files of its own that nobody reads."""

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
    """Write this process's warnings, and Evergreen's own log, to `file` for as long as the block lasts."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(file)
    handler.setFormatter(_JsonLines())
    logging.captureWarnings(capture=True)
    warnings.simplefilter("default")  # each place once
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
    """Repeats what workers warn of, once, however many of them say it."""

    paths: RunPaths
    _read: dict[Path, int] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._read = {file: file.stat().st_size for file in self._files()}

    def pump(self) -> None:
        """Log what is new since the last call."""
        for file in self._files():
            with file.open("rb") as stream:
                stream.seek(self._read.get(file, 0))
                new = stream.read()
            whole = new[: new.rfind(b"\n") + 1]  # the rest is being written
            self._read[file] = self._read.get(file, 0) + len(whole)
            for line in whole.splitlines():
                with suppress(
                    ValueError, KeyError, TypeError
                ):  # a damaged log is no reason to end a training
                    self._say(file.stem, json.loads(line))

    def _files(self) -> list[Path]:
        return sorted(self.paths.logs.glob("rank-*.jsonl"))

    def _say(self, worker: str, record: dict[str, Any]) -> None:
        if record["level"] < logging.WARNING or record["text"] in self._said:
            return
        self._said.add(record["text"])
        logger = logging.getLogger("evergreen.worker" if record["name"] == "py.warnings" else record["name"])
        logger.log(record["level"], "%s: %s", worker, str(record["text"]).strip())
