"""Digests of the models that this home registered, stored as files in the home.

Everyone with write access to the registry can change the digests in its tags, so the tags detect damage but no attack.
The files in the home are out of reach of such an attacker. A registry that was deleted and created again numbers its
versions from 1 again, so registering a version replaces the file of that number.

The digests are announced before the registration, by the logged model, as only the registry gives the version's number.
When the process is killed in between, the next one finds the version, and adopts the digests that were announced.
"""

import hashlib
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from training.storage.files import write_text
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.register")

_DIGEST = re.compile(r"[0-9a-f]{64}")


class OwnDigests(NamedTuple):
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
    write_text(_announcement(home, model, source), _text(digests))


def adopt_digests(client: "MlflowClient", home: Home, model: str, number: str) -> None:
    """Store the digests that were announced for version `number`, unless another home registered this version."""
    source = client.get_model_version(model, number).source or ""
    announced = _announcement(home, model, source)
    if (digests := _read(announced)) is not None:
        keep_digests(home, model, number, digests)
        announced.unlink(missing_ok=True)


def keep_digests(home: Home, model: str, number: str, digests: OwnDigests) -> None:
    """Store the digests of version `number`, which this home has just registered in the current store."""
    write_text(record_of(home, model, number), _text(digests))


def _text(digests: OwnDigests) -> str:
    return "".join(f"{digest}\n" for digest in digests if digest)


def kept_digests(home: Home, model: str, number: str) -> OwnDigests | None:
    """The stored digests of version `number`, or None (with a warning if their file is damaged).

    Versions that another home registered, or an older Evergreen without these files, have none.
    """
    return _read(record_of(home, model, number))


def _read(file: Path) -> OwnDigests | None:
    try:
        lines = file.read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        lines = []
    if not 1 <= len(lines) <= len(OwnDigests._fields) or not all(map(_DIGEST.fullmatch, lines)):
        log.warning("%s is damaged: the model is compared with the registry's digests only", file)
        return None
    return OwnDigests(*lines)


def _announcement(home: Home, model: str, source: str) -> Path:
    return record_of(home, model, f"announced-{hashlib.sha256(source.encode()).hexdigest()[:16]}")


def record_of(home: Home, model: str, number: str) -> Path:
    """Path of the file with the digests of version `number`, for the registry that MLflow is configured for."""
    import mlflow

    uri = mlflow.get_registry_uri()
    store = "embedded" if uri == home.mlflow_uri else hashlib.sha256(uri.encode()).hexdigest()[:16]
    return home.registered / store / model / number
