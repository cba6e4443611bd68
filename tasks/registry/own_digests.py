"""Digests of the models that this home registered, kept in the home.

The tag in the registry is written by whoever may write the registry: it shows damage, not an attack. These records
lie in the home, beside the code's own files. A store that was made new after it was deleted counts its versions from
1 again: registering a version replaces its record.
"""

import hashlib
import logging
import re
from pathlib import Path

from training.storage.files import write_text
from training.storage.paths import Home

log = logging.getLogger("evergreen.register")

_DIGEST = re.compile(r"[0-9a-f]{64}")


def keep_digest(home: Home, model: str, number: str, sha256: str) -> None:
    """Record the digest of version `number`, which this home has just registered in the current store."""
    write_text(record_of(home, model, number), f"{sha256}\n")


def kept_digest(home: Home, model: str, number: str) -> str | None:
    """The digest on record, or None for a version that another home registered, or an Evergreen without records."""
    file = record_of(home, model, number)
    try:
        text = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        text = ""
    if not _DIGEST.fullmatch(text):
        log.warning("%s is damaged: the model is held against its registry's digest alone", file)
        return None
    return text


def record_of(home: Home, model: str, number: str) -> Path:
    """The file with the digest of version `number` in the store that MLflow is set to."""
    import mlflow

    uri = mlflow.get_registry_uri()
    store = "embedded" if uri == home.mlflow_uri else hashlib.sha256(uri.encode()).hexdigest()[:16]
    return home.registered / store / model / number
