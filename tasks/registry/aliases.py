"""Aliases of MLflow's model registry: find the champion, move aliases, and record each decision.

MLflow has no compare-and-set, so every function that writes takes the lease of `tasks/registry/lock.py`, and checks
right before each write that the lease is still held; a promotion also checks that the champion has not changed. The
functions are idempotent: after an interruption at any point, a second call does the remaining work.
"""

import logging
import time
from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict, Field

from tasks.model_formats.base import Registered
from tasks.registry.lock import Lease, LockLostError, registry_lock
from tasks.registry.safe_loading import load_checked
from tasks.trackers.paged_search import all_pages
from training.errors import SettingError, TransientError
from training.records import NOT_AGAIN as NOT_AGAIN
from training.records import Record
from training.storage.paths import Home
from training.storage.record_files import Lines, read_lines, set_aside, write_records

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

log = logging.getLogger("evergreen.registry")

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
TRANSFORM_TAG = "evergreen.transform"  # digest of the recipe's function `transform_rows`; absent without one
DATASET_TAG = "evergreen.dataset"
CLASSES_TAG, WEIGHTS_TAG = "evergreen.classes", "evergreen.weights"
ROLLED_BACK_TAG = "evergreen.rolled_back"
ROLLBACK_TAG = (
    "evergreen.rollback"  # of a version that is being rolled back: the identity of the home that does so
)
VERDICT_TAG = "evergreen.verdict"
TURN_TAG = "evergreen.turn"  # turn of the registry lock in which a version last became champion
Alias = Literal["champion", "challenger", "previous", "none"]


class Decision(Record):
    """A line of `decisions/<model>.jsonl`: when and why a version became champion, or a candidate was kept.

    A promotion or rollback replaces the champion `before` by `to`. Kept: `candidate` was not promoted.
    """

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    at: str = ""
    action: Literal["promote", "keep", "rollback"]
    candidate: str | None = None
    before: str | None = Field(None, alias="from")
    to: str | None = None
    why: str
    turn: int | None = None


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


def delete_duplicates(lease: Lease, tags: dict[str, str]) -> str:
    """Delete all but the oldest version with these tags, and return the oldest version's number.

    When the answer to a request is lost, MLflow's client repeats the request, and the server makes a second version.
    """
    from mlflow.exceptions import MlflowException

    kept, *twins = _versions(lease.client, lease.model, tags)
    for twin in twins:
        lease.check()
        try:
            lease.client.delete_model_version(lease.model, str(twin))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # an identical earlier request deleted it
                raise
    return str(kept)


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
    if now != number or _last_move(home, model) != number:
        decision = Decision(action="promote", before=expected, to=number, why=why, turn=lease.turn)
        record_decision(home, model, decision)
    if now != number:
        _check_still_champion(lease, number)
    if champion_of(client, model, CHALLENGER) == number:
        lease.check()
        client.delete_registered_model_alias(model, CHALLENGER)


def _replace_champion(lease: Lease, now: str | None, number: str, expected: str | None) -> None:
    if now != expected:
        raise ChampionMovedError(
            f"model {lease.model}: the champion was version {expected} when the comparison began and is {now} now. "
            "Run the same command again: the candidate is compared with the new champion."
        )
    if now is not None:
        _point(lease, PREVIOUS, now)
    _make_champion(lease, number)


def _check_still_champion(lease: Lease, number: str) -> None:
    """Detect a concurrent move of the alias: by a person in MLflow's UI, or by a home that ended this lease."""
    if (after := champion_of(lease.client, lease.model)) != number:
        raise ChampionMovedError(
            f"model {lease.model}: version {after} became champion at the same moment. Run the same command again."
        )


def _make_champion(lease: Lease, number: str) -> None:
    """Write the turn, then move the alias: with an outdated turn the move would look like a move without the lock."""
    lease.check()
    lease.client.set_model_version_tag(lease.model, number, TURN_TAG, str(lease.turn))
    _point(lease, CHAMPION, number)


def _point(lease: Lease, alias: str, number: str) -> None:
    """Move an alias. An answer that was lost, after the alias has moved, is no failure."""
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
    _point(lease, CHALLENGER, number)
    record_decision(lease.home, lease.model, Decision(action="keep", candidate=number, why=why))


def refuse_rolled_back(lease: Lease, number: str) -> None:
    """Record that version `number` passed the gate but is no champion, as a version with its weights was rolled back.

    Nothing is recorded for the version that was itself rolled back: its rollback is on record.
    """
    if ROLLED_BACK_TAG not in version_tags(lease.client, lease.model, number):
        record_decision(lease.home, lease.model, Decision(action="keep", candidate=number, why=NOT_AGAIN))


def roll_back(client: "MlflowClient", home: Home, model: str, why: str) -> tuple[str, str]:
    """Swap `champion` and `previous`, after checking that the previous version loads; returns (from, to).

    The version that is rolled back is tagged first: whatever happens next, it is not promoted again automatically. If
    an earlier rollback was interrupted, that rollback is finished, and no new rollback begins. Raises
    :class:`SettingError` when there is no version to return to.
    """
    with registry_lock(client, home, model) as lease:
        if (finished := finish_rollback(lease)) is not None:
            return finished
        now, before = champion_of(client, model), champion_of(client, model, PREVIOUS)
        if now is None or before is None or now == before:
            raise SettingError(
                f"model {model}: "
                + ("there is no champion" if now is None else "the champion has no predecessor")
                + ", so there is nothing to return to."
            )
        load_version(home, model, before)
        why = why or "by hand"
        lease.check()
        client.set_model_version_tag(model, now, ROLLED_BACK_TAG, why)
        lease.check()
        client.set_model_version_tag(model, now, ROLLBACK_TAG, home.identity)
        _make_champion(lease, before)
        _complete_rollback(lease, now, before, why)
        return now, before


def unfinished_rollback(client: "MlflowClient", home: Home, model: str) -> tuple[str, str] | None:
    """(from, to) of a rollback that moved the champion but was interrupted before it was recorded, or None.

    The rollback of another home that shares the registry is left to that home.
    """
    now, left = champion_of(client, model), _last_move(home, model)
    if now is None or left in (None, now) or champion_of(client, model, PREVIOUS) not in (now, left):
        return None
    begun = _found(client, model, {ROLLBACK_TAG: home.identity})
    return (left, now) if left in (str(version.version) for version in begun) else None


def finish_rollback(lease: Lease) -> tuple[str, str] | None:
    """Finish an interrupted rollback; returns its (from, to), or None when there is none."""
    found = unfinished_rollback(lease.client, lease.home, lease.model)
    if found is not None:
        why = version_tags(lease.client, lease.model, found[0]).get(ROLLED_BACK_TAG, "by hand")
        _complete_rollback(lease, *found, why)
    return found


def _complete_rollback(lease: Lease, left: str, now: str, why: str) -> None:
    """Do the steps after the move of the champion. The record and the removal of the mark come last, in this order."""
    client, model = lease.client, lease.model
    _point(lease, PREVIOUS, left)
    if ROLLED_BACK_TAG in version_tags(client, model, now):
        lease.check()
        client.delete_model_version_tag(model, now, ROLLED_BACK_TAG)
    decision = Decision(action="rollback", before=left, to=now, why=why, turn=lease.turn)
    record_decision(lease.home, model, decision)
    _remove_marks(lease, left, now)


def _remove_marks(lease: Lease, *versions: str) -> None:
    """Remove the marks of a rollback in progress, now that the rollback is on record.

    A failure is no failure of the rollback, and a repeated command would begin another rollback. The next rollback to
    or from these versions removes a mark that stays.
    """
    from mlflow.exceptions import MlflowException

    client, model = lease.client, lease.model
    try:
        for number in versions:
            if ROLLBACK_TAG in version_tags(client, model, number):
                lease.check()
                client.delete_model_version_tag(model, number, ROLLBACK_TAG)
    except (MlflowException, LockLostError) as error:
        log.warning(
            "model %s: the rollback is done, but tag %s was not removed (%s)", model, ROLLBACK_TAG, error
        )


def record_decision(home: Home, model: str, decision: Decision) -> None:
    """Append a decision to the model's decisions file, which records each champion with time and reason.

    An interrupted step repeats its decision: a decision that equals the last line is not written again. A damaged
    file is set aside, and its readable lines are kept.
    """
    found = read_decisions(home, model)
    repeated = bool(found.records) and found.records[-1].model_copy(update={"at": ""}) == decision
    if repeated and not found.damage:
        return
    if found.damage:
        set_aside(found.file, f"{found.damage}; its other lines are kept")
    made = decision.model_copy(update={"at": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
    write_records(found.file, found.records if repeated else [*found.records, made], model)


def _last_move(home: Home, model: str) -> str | None:
    """The champion according to the newest promotion or rollback on record, or None."""
    decisions = read_decisions(home, model).undamaged()
    return next((one.to for one in reversed(decisions) if one.to is not None), None)


def read_decisions(home: Home, model: str) -> Lines[Decision]:
    """Read the model's decisions, oldest first, and a description of the file's damage, if any."""
    return read_lines(home.root / "decisions" / f"{model}.jsonl", Decision, model, appended=False)
