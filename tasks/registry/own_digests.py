"""Digests of the models that this home registered, stored as files in the home.

Everyone with write access to the registry can change the digest in its tag, so the tag detects damage but no attack.
The files in the home are out of reach of such an attacker. A registry that was deleted and created again numbers its
versions from 1 again, so registering a version replaces the file of that number.
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
    """Store the digest of version `number`, which this home has just registered in the current store."""
    write_text(record_of(home, model, number), f"{sha256}\n")


def kept_digest(home: Home, model: str, number: str) -> str | None:
    """The stored digest of version `number`, or None (with a warning if its file is damaged).

    Versions that another home registered, or an older Evergreen without these files, have none.
    """
    file = record_of(home, model, number)
    try:
        text = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        text = ""
    if not _DIGEST.fullmatch(text):
        log.warning("%s is damaged: the model is compared with the registry's digest only", file)
        return None
    return text


def record_of(home: Home, model: str, number: str) -> Path:
    """Path of the file with the digest of version `number`, for the registry that MLflow is configured for."""
    import mlflow

    uri = mlflow.get_registry_uri()
    store = "embedded" if uri == home.mlflow_uri else hashlib.sha256(uri.encode()).hexdigest()[:16]
    return home.registered / store / model / number
