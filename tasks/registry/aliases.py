"""Aliases of MLflow's model registry: find versions and the champion, and move aliases.

MLflow has no compare-and-set, so every function that writes takes the lease of `tasks/registry/lock.py`, and checks
right before each write that the lease is still held; a promotion also checks that the champion has not changed. The
functions are idempotent: after an interruption at any point, a second call does the remaining work.
"""

import logging
from typing import TYPE_CHECKING, Literal

from tasks.model_formats.base import Registered
from tasks.registry.decisions import Decision, last_champion, record_decision
from tasks.registry.lock import Lease
from tasks.registry.safe_loading import load_checked
from tasks.trackers.paged_search import all_pages
from training.errors import TransientError
from training.records import NOT_AGAIN
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

log = logging.getLogger("evergreen.registry")

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
DATASET_TAG = "evergreen.dataset"
CLASSES_TAG, WEIGHTS_TAG = "evergreen.classes", "evergreen.weights"
ROLLED_BACK_TAG = "evergreen.rolled_back"
VERDICT_TAG = "evergreen.verdict"
METRIC_TAG = "evergreen.metric"  # what the gate compared, which stays while the version is champion
TURN_TAG = "evergreen.turn"  # turn of the registry lock in which a version last became champion
Alias = Literal["champion", "challenger", "previous", "none"]


class ChampionMovedError(TransientError):
    """The champion changed since the candidate was compared with it: compare again; a retry would fail again."""


def champion_of(client: "MlflowClient", model: str, alias: str = CHAMPION) -> str | None:
    """Version number that the alias points to, or None when there is no such model or alias.

    Each alias is read by its own request: MLflow's searches return versions without their aliases.
    """
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_model_version_by_alias(model, alias).version)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def alias_of(client: "MlflowClient", model: str, number: str) -> Alias:
    """The first of the aliases champion, challenger and previous that points to version `number`, or "none"."""
    aliases: tuple[Alias, ...] = ("champion", "challenger", "previous")
    return next((alias for alias in aliases if champion_of(client, model, alias) == number), "none")


def version_tags(client: "MlflowClient", model: str, number: str) -> dict[str, str]:
    """The tags of version `number`."""
    tags: dict[str, str] = client.get_model_version(model, number).tags
    return tags


def find_version(client: "MlflowClient", model: str, tags: dict[str, str]) -> str | None:
    """The oldest version of `model` with these tags, or None."""
    return next(map(str, _versions(client, model, tags)), None)


def was_rolled_back(client: "MlflowClient", model: str, weights: str) -> bool:
    """Whether any version with these weights was rolled back.

    Compares weights, because a forced run registers the same weights again as another version.
    """
    return any(ROLLED_BACK_TAG in version.tags for version in versions_with_weights(client, model, weights))


def versions_with_weights(client: "MlflowClient", model: str, weights: str) -> "list[ModelVersion]":
    """The versions of `model` whose weights have this digest, in no particular order."""
    return _found(client, model, {WEIGHTS_TAG: weights})


def _versions(client: "MlflowClient", model: str, tags: dict[str, str]) -> list[int]:
    return sorted(int(version.version) for version in _found(client, model, tags))


def _found(client: "MlflowClient", model: str, tags: dict[str, str]) -> "list[ModelVersion]":
    wanted = [f"tags.`{name}` = '{value}'" for name, value in tags.items()]
    return all_pages(client.search_model_versions, " and ".join([f"name = '{model}'", *wanted]))


def delete_duplicates(lease: Lease, tags: dict[str, str]) -> str | None:
    """Delete all but the oldest version with these tags; returns the oldest version's number, None without a version.

    When the answer to a request is lost, MLflow's client repeats the request, and the server makes a second version.
    """
    from mlflow.exceptions import MlflowException

    numbers = _versions(lease.client, lease.model, tags)
    for twin in numbers[1:]:
        lease.check()
        try:
            version = lease.client.get_model_version(lease.model, str(twin))
            # MLflow would delete an alias that a person set, with the version.
            if not version.aliases and ROLLED_BACK_TAG not in version.tags:
                lease.client.delete_model_version(lease.model, str(twin))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # an identical earlier request deleted it
                raise
    return str(numbers[0]) if numbers else None


def load_version(home: Home, model: str, number: str) -> Registered:
    """Load a registered version, after a check of its files; no code of the model is run.

    Raises :class:`DataError` when the files are damaged, or are not what Evergreen registers, and
    :class:`SettingError` when the library that loads the model is not installed.
    """
    return load_checked(home, model, number)


def move_alias(lease: Lease, number: str, expected: str | None, why: str) -> None:
    """Make `number` the champion if the champion is still `expected`; the old champion becomes `previous`.

    The decision is recorded after the alias has moved, so that a recorded decision has always taken effect. Raises
    :class:`ChampionMovedError` when another process or a person has moved the alias meanwhile.
    """
    client, home, model = lease.client, lease.home, lease.model
    now = champion_of(client, model)
    if now != number:
        _replace_champion(lease, now, number, expected)
    if now != number or last_champion(home, model) != number:
        decision = Decision(action="promote", before=expected, to=number, why=why, turn=lease.turn)
        record_decision(home, model, decision)
    if now != number:
        _check_still_champion(lease, number)
    if champion_of(client, model, CHALLENGER) == number:
        lease.check()
        client.delete_registered_model_alias(model, CHALLENGER)


def check_compared_with(lease: Lease, expected: str | None, candidate: dict[str, str]) -> None:
    """Check that the champion is `expected`, or a version with the tags `candidate`: the candidate itself.

    Raises :class:`ChampionMovedError` otherwise: a verdict on the candidate would be about a former champion.
    """
    now = champion_of(lease.client, lease.model)
    if now == expected:
        return
    tags = {} if now is None else version_tags(lease.client, lease.model, now)
    if not candidate.items() <= tags.items():
        raise _moved(lease.model, expected, now)


def _moved(model: str, expected: str | None, now: str | None) -> ChampionMovedError:
    return ChampionMovedError(
        f"model {model}: the champion was version {expected} when the comparison began and is {now} now. "
        "Run the same command again: the candidate is compared with the new champion."
    )


def _replace_champion(lease: Lease, now: str | None, number: str, expected: str | None) -> None:
    if now != expected:
        raise _moved(lease.model, expected, now)
    if now is not None:
        point(lease, PREVIOUS, now)
    make_champion(lease, number)


def _check_still_champion(lease: Lease, number: str) -> None:
    """Detect a concurrent move of the alias: by a person in MLflow's UI, or by a home that ended this lease."""
    if (after := champion_of(lease.client, lease.model)) != number:
        raise ChampionMovedError(
            f"model {lease.model}: version {after} became champion at the same moment. Run the same command again."
        )


def make_champion(lease: Lease, number: str) -> None:
    """Write the turn, then move the alias: with an outdated turn, the move would count as one without the lock."""
    lease.check()
    lease.client.set_model_version_tag(lease.model, number, TURN_TAG, str(lease.turn))
    point(lease, CHAMPION, number)


def point(lease: Lease, alias: str, number: str) -> None:
    """Move an alias; no error if only the reply was lost and the alias has moved."""
    from mlflow.exceptions import MlflowException

    lease.check()
    try:
        lease.client.set_registered_model_alias(lease.model, alias, number)
    except MlflowException as error:
        if champion_of(lease.client, lease.model, alias) != number:
            raise
        log.debug("model %s: alias %s points to version %s (%s)", lease.model, alias, number, error)


def keep_as_challenger(lease: Lease, number: str, why: str) -> None:
    """Point `challenger` to a version that was not promoted, and record that decision."""
    point(lease, CHALLENGER, number)
    record_decision(lease.home, lease.model, Decision(action="keep", candidate=number, why=why))


def refuse_rolled_back(lease: Lease, number: str) -> None:
    """Record that version `number` passed the gate but is no champion, as a version with its weights was rolled back.

    Nothing is recorded for the version that was itself rolled back: its rollback is on record.
    """
    if ROLLED_BACK_TAG not in version_tags(lease.client, lease.model, number):
        record_decision(lease.home, lease.model, Decision(action="keep", candidate=number, why=NOT_AGAIN))
