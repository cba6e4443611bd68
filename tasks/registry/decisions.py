"""Record of each decision about a model: when and why a version became champion, or a candidate was kept.

The decisions about one model in one registry are the lines of one JSON Lines file in the home.
"""

import hashlib
import time
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field

from training.records import Record
from training.storage.paths import Home
from training.storage.record_files import Lines, read_lines, set_aside, write_records


class Decision(Record):
    """A line of the file at :func:`decisions_file`: when and why a version became champion, or a candidate was kept.

    A promotion or rollback replaces the champion `before` by `to`. Kept: `candidate` was not promoted. `mark_stays`:
    the rollback is done, although its mark in the registry could not be removed.
    """

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    at: str = ""
    action: Literal["promote", "keep", "rollback"]
    candidate: str | None = None
    before: str | None = Field(None, alias="from")
    to: str | None = None
    why: str
    turn: int | None = None
    mark_stays: bool = False


def record_decision(home: Home, model: str, decision: Decision) -> None:
    """Append a decision to the model's decisions file, which records each champion with time and reason.

    An interrupted step repeats its decision: a decision that equals the last line is not written again. A damaged
    file is set aside, and its readable lines are kept.
    """
    lines = read_decisions(home, model)
    repeated = bool(lines.records) and lines.records[-1].model_copy(update={"at": ""}) == decision
    if repeated and not lines.damage:
        return
    if lines.damage:
        set_aside(lines.file, f"{lines.damage}; its other lines are kept")
    made = decision.model_copy(update={"at": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
    file = decisions_file(home, model)
    write_records(file, lines.records if repeated else [*lines.records, made], model)
    if lines.file != file:  # that of an older Evergreen
        lines.file.unlink(missing_ok=True)


def read_decisions(home: Home, model: str) -> Lines[Decision]:
    """Read the decisions about `model` in the current registry, oldest first, and a description of damage, if any."""
    file, old = decisions_file(home, model), home.root / "decisions" / f"{model}.jsonl"
    # An older Evergreen had one file for all registries; without an embedded one, it is that of the server.
    is_of_server = not file.exists() and old.exists() and not home.mlflow_file.exists()
    return read_lines(old if is_of_server else file, Decision, model, appended=False)


def decisions_file(home: Home, model: str) -> Path:
    """Path of the file for the registry that MLflow is configured for: version numbers are those of one registry."""
    import mlflow

    uri = mlflow.get_registry_uri()
    folder = home.root / "decisions"
    if uri != home.mlflow_uri:
        parts = urlsplit(uri)
        # Without user and password, because passwords change.
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        folder /= hashlib.sha256(address.encode()).hexdigest()[:16]
    return folder / f"{model}.jsonl"


def last_champion(home: Home, model: str) -> str | None:
    """The champion according to the newest promotion or rollback on record, or None."""
    decisions = read_decisions(home, model).undamaged()
    return next((decision.to for decision in reversed(decisions) if decision.to is not None), None)


def note_that_mark_stays(home: Home, model: str) -> None:
    """Set `mark_stays` in the last decision, which is the rollback."""
    lines = read_decisions(home, model)
    *others, last = lines.records
    write_records(lines.file, [*others, last.model_copy(update={"mark_stays": True})], model)
