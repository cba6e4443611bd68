"""MLflow's model registry: who is champion, and moves of the aliases that leave a record.

MLflow has no compare-and-set, so every move is made under a lock of the home and checks first that the alias
still points where it did.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from training.errors import DataError, SettingError, TransientError
from training.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.pyfunc import PyFuncModel

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
CLASSES_TAG, WEIGHTS_TAG = "evergreen.classes", "evergreen.weights"
_LOCK_TIMEOUT_S = 120


@contextmanager
def registry_lock(home: Home, model: str) -> Iterator[None]:
    """One writer of a model's versions and aliases at a time; the lock dies with its holder."""
    home.locks.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(home.locks / f"registry-{model}.lock", timeout=_LOCK_TIMEOUT_S):
            yield
    except Timeout as error:
        raise TransientError(
            f"model {model}: another process is registering for over {_LOCK_TIMEOUT_S} s"
        ) from error


def champion_of(client: "MlflowClient", model: str, alias: str = CHAMPION) -> str | None:
    """Version number that the alias points to, or None when there is no such model or alias.

    Aliases are read one by one: MLflow's searches return versions without theirs.
    """
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_model_version_by_alias(model, alias).version)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def version_tags(client: "MlflowClient", model: str, number: str) -> dict[str, str]:
    """Tags of one version."""
    tags: dict[str, str] = client.get_model_version(model, number).tags
    return tags


def find_version(client: "MlflowClient", model: str, tags: dict[str, str]) -> str | None:
    """The oldest version of `model` with these tags, or None."""
    wanted = [f"tags.`{name}` = '{value}'" for name, value in tags.items()]
    found = client.search_model_versions(" and ".join([f"name = '{model}'", *wanted]))
    return str(min(int(version.version) for version in found)) if found else None


def load_version(model: str, number: str) -> "PyFuncModel":
    """A registered version through plain MLflow. Raises :class:`DataError` when its files are damaged."""
    import mlflow.pyfunc

    try:
        loaded: PyFuncModel = mlflow.pyfunc.load_model(f"models:/{model}/{number}")
        return loaded
    except Exception as error:  # MLflow, torch and zip readers raise many kinds
        raise DataError(
            f"model {model} version {number} can't be loaded ({type(error).__name__}: {error}). Point the alias to a "
            f"version that can: `evergreen rollback {model}`."
        ) from error


def move_alias(
    client: "MlflowClient", home: Home, model: str, number: str, expected: str | None, why: str
) -> None:
    """Make `number` the champion if the champion still is `expected`; the old one becomes `previous`.

    Raises :class:`TransientError` when someone else moved the alias meanwhile; running again judges anew.
    """
    now = champion_of(client, model)
    if now == number:
        return
    if now != expected:
        raise TransientError(
            f"model {model}: the champion was version {expected} when the comparison began and is {now} now. "
            "Run the same command again: the candidate is compared with the new champion."
        )
    record_decision(home, model, {"action": "promote", "from": now, "to": number, "why": why})
    if now is not None:
        client.set_registered_model_alias(model, PREVIOUS, now)
    client.set_registered_model_alias(model, CHAMPION, number)
    if (
        after := champion_of(client, model)
    ) != number:  # another home's run, which our lock does not hold back
        raise TransientError(f"model {model}: version {after} became champion at the same moment; run again")
    if champion_of(client, model, CHALLENGER) == number:
        client.delete_registered_model_alias(model, CHALLENGER)


def roll_back(client: "MlflowClient", home: Home, model: str, why: str) -> tuple[str, str]:
    """Swap `champion` and `previous`, after a try whether the older one still loads; returns (from, to).

    Raises :class:`SettingError` when there is nothing to return to.
    """
    with registry_lock(home, model):
        now, before = champion_of(client, model), champion_of(client, model, PREVIOUS)
        if now is None or before is None or now == before:
            raise SettingError(
                f"model {model}: "
                + ("there is no champion" if now is None else "the champion has no predecessor")
                + ", so there is nothing to return to. `evergreen recipes` lists models and aliases."
            )
        load_version(model, before)
        record_decision(home, model, {"action": "rollback", "from": now, "to": before, "why": why})
        client.set_registered_model_alias(model, CHAMPION, before)
        client.set_registered_model_alias(model, PREVIOUS, now)
        client.set_model_version_tag(model, now, "evergreen.rolled_back", why or "by hand")
        return now, before


def record_decision(home: Home, model: str, decision: dict[str, Any]) -> None:
    """Add a line to the model's decisions: an append-only record of who was champion when, and why."""
    file = Path(home.root) / "decisions" / f"{model}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **decision}) + "\n")
