"""Digests of the models that this home registered, stored as files in the home.

Everyone with write access to the registry can change the digests in its tags, so the tags detect damage but no attack.
Such an attacker can't change the files in the home. A registry that was deleted and created again numbers its versions
from 1 again, so registering a version replaces the file of that number.

Before the registration, which assigns the version's number, the digests are stored under the logged model's URI. When
the process is killed in between, the next process finds the version, and stores these digests under its number.
"""

import hashlib
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from training.records import Record
from training.storage.paths import Home
from training.storage.record_files import DamagedError, read_record, write_record

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.register")

_DIGEST = re.compile(r"[0-9a-f]{64}")


class OwnDigests(Record):
    """Digests of a version that this home registered: of the model file, of the metadata in `MLmodel`, of the weights.

    The metadata name the classes, and the columns, categories and fitted numbers of a table, all of which change
    predictions. A training may start from the weights, a file of their own for networks. An older Evergreen did not
    store the digests of the metadata and of the weights.
    """

    model_file: str
    metadata: str | None = None
    weights: str | None = None


def announce_digests(home: Home, model: str, source: str, digests: OwnDigests) -> None:
    """Store the digests of a version that will be registered from the logged model `source`, as `models:/m-1`."""
    write_record(_announcement(home, model, source), digests, model)


def adopt_digests(client: "MlflowClient", home: Home, model: str, number: str) -> None:
    """Store the digests that were announced for version `number`, unless another home registered this version."""
    source = client.get_model_version(model, number).source or ""
    announced = _announcement(home, model, source)
    if (digests := _read(announced, model)) is not None:
        keep_digests(home, model, number, digests)
        announced.unlink(missing_ok=True)


def keep_digests(home: Home, model: str, number: str, digests: OwnDigests) -> None:
    """Store the digests of version `number`, which this home has just registered in the current store."""
    write_record(record_of(home, model, number), digests, model)


def kept_digests(home: Home, model: str, number: str) -> OwnDigests | None:
    """The stored digests of version `number`, or None (with a warning if their file is damaged).

    Versions that another home registered, or an older Evergreen without these files, have none.
    """
    return _read(record_of(home, model, number), model)


def _read(file: Path, model: str) -> OwnDigests | None:
    try:
        return _of_plain_text(file) or read_record(file, OwnDigests, model)
    except FileNotFoundError:
        return None
    except (OSError, DamagedError) as error:
        log.warning("%s: the model is compared with the registry's digests only", error)
        return None


def _of_plain_text(file: Path) -> OwnDigests | None:
    """The digests in a file of an earlier version of Evergreen, which has a digest on each line; None for a record."""
    lines = file.read_text(encoding="utf-8", errors="replace").split()
    names = list(OwnDigests.model_fields)
    if not 1 <= len(lines) <= len(names) or not all(map(_DIGEST.fullmatch, lines)):
        return None
    return OwnDigests(**dict(zip(names, lines, strict=False)))


def _announcement(home: Home, model: str, source: str) -> Path:
    return record_of(home, model, f"announced-{hashlib.sha256(source.encode()).hexdigest()[:16]}")


def record_of(home: Home, model: str, number: str) -> Path:
    """Path of the file with the digests of version `number`, for the registry that MLflow is configured for."""
    import mlflow

    uri = mlflow.get_registry_uri()
    store = "embedded" if uri == home.mlflow_uri else hashlib.sha256(uri.encode()).hexdigest()[:16]
    return home.registered / store / model / number
