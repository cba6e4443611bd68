"""Aliases of MLflow's model registry: find the champion, move aliases, and record each decision.

MLflow has no compare-and-set, so every function that writes takes the lease of `tasks/registry/lock.py`, and checks
right before each write that the lease is still held; a promotion also checks that the champion has not changed. The
functions are idempotent: after an interruption at any point, a second call does the remaining work.
"""

import hashlib
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field

from tasks.model_formats.base import Registered
from tasks.registry.lock import Lease, LockLostError, registry_lock
from tasks.registry.rollback_mark import ROLLBACK_TAG as ROLLBACK_TAG
from tasks.registry.rollback_mark import Mark, mark_text, marks_of
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
DATASET_TAG = "evergreen.dataset"
CLASSES_TAG, WEIGHTS_TAG = "evergreen.classes", "evergreen.weights"
ROLLED_BACK_TAG = "evergreen.rolled_back"
VERDICT_TAG = "evergreen.verdict"
TURN_TAG = "evergreen.turn"  # turn of the registry lock in which a version last became champion
Alias = Literal["champion", "challenger", "previous", "none"]


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

    found = _versions(lease.client, lease.model, tags)
    for twin in found[1:]:
        lease.check()
        try:
            version = lease.client.get_model_version(lease.model, str(twin))
            # MLflow would delete an alias that a person set, with the version.
            if not version.aliases and ROLLED_BACK_TAG not in version.tags:
                lease.client.delete_model_version(lease.model, str(twin))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # an identical earlier request deleted it
                raise
    return str(found[0]) if found else None


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
        _point(lease, PREVIOUS, now)
    _make_champion(lease, number)


def _check_still_champion(lease: Lease, number: str) -> None:
    """Detect a concurrent move of the alias: by a person in MLflow's UI, or by a home that ended this lease."""
    if (after := champion_of(lease.client, lease.model)) != number:
        raise ChampionMovedError(
            f"model {lease.model}: version {after} became champion at the same moment. Run the same command again."
        )


def _make_champion(lease: Lease, number: str) -> None:
    """Write the turn, then move the alias: with an outdated turn, the move would count as one without the lock."""
    lease.check()
    lease.client.set_model_version_tag(lease.model, number, TURN_TAG, str(lease.turn))
    _point(lease, CHAMPION, number)


def _point(lease: Lease, alias: str, number: str) -> None:
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
    _point(lease, CHALLENGER, number)
    record_decision(lease.home, lease.model, Decision(action="keep", candidate=number, why=why))


def refuse_rolled_back(lease: Lease, number: str) -> None:
    """Record that version `number` passed the gate but is no champion, as a version with its weights was rolled back.

    Nothing is recorded for the version that was itself rolled back: its rollback is on record.
    """
    if ROLLED_BACK_TAG not in version_tags(lease.client, lease.model, number):
        record_decision(lease.home, lease.model, Decision(action="keep", candidate=number, why=NOT_AGAIN))


def roll_back(
    client: "MlflowClient", home: Home, model: str, why: str, wanted: str | None = None
) -> tuple[str, str]:
    """Make version `wanted` champion, by default the version `previous`; returns (from, to).

    The version that is left becomes `previous`, and is tagged first: whatever happens next, it is not promoted again
    automatically. It is not tagged when `wanted` is newer and was rolled back, as that rollback is undone. If an
    earlier rollback was interrupted, that rollback is finished, and no new rollback begins, except to another
    `wanted`. When `wanted` is champion already, nothing changes but the tag of a rollback that was interrupted early.

    Raises :class:`SettingError` when there is no version to return to, when `wanted` was never champion, and, without
    `wanted`, when `previous` was rolled back itself: a rollback that is repeated by mistake would make the bad version
    champion again.
    """
    if wanted is not None and str(wanted).isdecimal():
        wanted = str(int(wanted))  # MLflow reads `03` as 3; a caller may give an integer
    with registry_lock(client, home, model) as lease:
        if (finished := finish_rollback(lease)) is not None and wanted in (None, finished[1]):
            return finished
        now, before = champion_of(client, model), wanted or champion_of(client, model, PREVIOUS)
        if now is not None and now == wanted:
            if ROLLED_BACK_TAG in version_tags(
                client, model, now
            ):  # of a rollback that was interrupted early
                lease.check()
                client.delete_model_version_tag(model, now, ROLLED_BACK_TAG)
            return now, now
        if now is None or before is None or now == before:
            raise SettingError(
                f"model {model}: "
                + ("there is no champion" if now is None else "the champion has no predecessor")
                + ", so there is nothing to return to."
            )
        if wanted is None:
            _check_not_rolled_back(client, model, now, before)
        else:
            _check_was_champion(client, home, model, wanted)
        load_version(home, model, before)
        why = why or "by hand"
        # A return to a newer version that was rolled back undoes that rollback: `now` is not bad.
        if int(now) > int(before) or ROLLED_BACK_TAG not in version_tags(client, model, before):
            lease.check()
            client.set_model_version_tag(model, now, ROLLED_BACK_TAG, why)
        lease.check()
        mark = mark_text(home.identity, before, lease.turn)
        client.set_model_version_tag(model, now, ROLLBACK_TAG, mark)
        _make_champion(lease, before)
        _complete_rollback(lease, now, before, why, lease.turn)
        return now, before


def _check_not_rolled_back(client: "MlflowClient", model: str, now: str, before: str) -> None:
    why = version_tags(client, model, before).get(ROLLED_BACK_TAG)
    if why is not None:
        raise SettingError(
            f"model {model}: version {before}, the champion before version {now}, was rolled back ({why}), so nothing "
            f"was changed. Name the former champion to return to: evergreen rollback {model} --to VERSION"
        )


def _check_was_champion(client: "MlflowClient", home: Home, model: str, number: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        tags = version_tags(client, model, number)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        raise SettingError(f"model {model}: there is no version {number}.") from error
    decided = (number in (one.to, one.before) for one in read_decisions(home, model).undamaged())
    if TURN_TAG not in tags and champion_of(client, model, PREVIOUS) != number and not any(decided):
        raise SettingError(
            f"model {model}: version {number} was never champion, and a rollback returns to a former champion. To put "
            "another version into service, set the alias champion by hand, on the model's page in `evergreen ui`."
        )


def unfinished_rollback(client: "MlflowClient", home: Home, model: str) -> tuple[str, str] | None:
    """(from, to) of a rollback by `home` that moved the champion but was interrupted before its last step, or None.

    The rollback of another home that shares the registry is left to that home.
    """
    mark = _unfinished(client, home, model)
    return None if mark is None or mark.to is None else (mark.left, mark.to)


def _unfinished(client: "MlflowClient", home: Home, model: str) -> Mark | None:
    """The mark, with its target, of the rollback that :func:`unfinished_rollback` names."""
    now = champion_of(client, model)
    if now is None:
        return None
    found = (_made_champion(client, home, one, model, now) for one in marks_of(client, model, home.identity))
    return next((one for one in found if one is not None), None)


def _made_champion(client: "MlflowClient", home: Home, mark: Mark, model: str, now: str) -> Mark | None:
    """`mark`, with its target, if its rollback made `now` the champion and may have steps left; else None.

    The turn distinguishes the rollback's move of the alias from a later move to the same version.
    """
    if mark.to is None:
        return _made_champion_on_record(client, home, mark, model, now)
    turn = version_tags(client, model, now).get(TURN_TAG)
    moved = (mark.to, str(mark.turn)) == (now, turn)
    return mark if moved and not _is_done(home, mark, model) else None


def _made_champion_on_record(
    client: "MlflowClient", home: Home, mark: Mark, model: str, now: str
) -> Mark | None:
    """:func:`_made_champion` for a mark without a target: the home's record says which version was champion."""
    left = _last_move(home, model)
    if left in (None, now) or left != mark.left or champion_of(client, model, PREVIOUS) not in (now, left):
        return None
    return mark._replace(to=now)


def _is_done(home: Home, mark: Mark, model: str) -> bool:
    """Whether the rollback is done although the mark is still there, because the mark could not be removed."""
    decisions = read_decisions(home, model).undamaged()
    return any(one.mark_stays and (one.before, one.to, one.turn) == mark for one in decisions)


def finish_rollback(lease: Lease) -> tuple[str, str] | None:
    """Finish an interrupted rollback; returns its (from, to), or None when there is none.

    Marks of this home that no interrupted rollback needs are removed.
    """
    client, home, model = lease.client, lease.home, lease.model
    mark = _unfinished(client, home, model)
    if mark is None or mark.to is None:
        for stale in marks_of(client, model, home.identity):
            lease.check()
            client.delete_model_version_tag(model, stale.left, ROLLBACK_TAG)
        return None
    why = version_tags(client, model, mark.left).get(ROLLED_BACK_TAG, "by hand")
    _complete_rollback(lease, mark.left, mark.to, why, mark.turn or lease.turn)
    return mark.left, mark.to


def _complete_rollback(lease: Lease, left: str, now: str, why: str, turn: int) -> None:
    """Do the steps after the champion's move in `turn`; the record and the removal of the mark last, in this order."""
    client, model = lease.client, lease.model
    _point(lease, PREVIOUS, left)
    if ROLLED_BACK_TAG in version_tags(client, model, now):
        lease.check()
        client.delete_model_version_tag(model, now, ROLLED_BACK_TAG)
    record_decision(lease.home, model, Decision(action="rollback", before=left, to=now, why=why, turn=turn))
    _remove_marks(lease, now, left)


def _remove_marks(lease: Lease, *versions: str) -> None:
    """Remove the marks of a rollback in progress, now that the rollback is on record.

    A failure does not fail the rollback: the record then notes that the mark stays, and a repeated command begins
    another rollback. The home's next rollback or registration removes a mark that stays.
    """
    from mlflow.exceptions import MlflowException

    client, model = lease.client, lease.model
    try:
        for number in versions:
            if ROLLBACK_TAG in version_tags(client, model, number):
                lease.check()
                client.delete_model_version_tag(model, number, ROLLBACK_TAG)
    except (MlflowException, LockLostError) as error:
        _record_that_mark_stays(lease.home, model)
        log.warning(
            "model %s: the rollback is done, but tag %s was not removed (%s)", model, ROLLBACK_TAG, error
        )


def _record_that_mark_stays(home: Home, model: str) -> None:
    """Set `mark_stays` in the last decision, which is the rollback."""
    found = read_decisions(home, model)
    *others, last = found.records
    write_records(found.file, [*others, last.model_copy(update={"mark_stays": True})], model)


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
    file = decisions_file(home, model)
    write_records(file, found.records if repeated else [*found.records, made], model)
    if found.file != file:  # that of an older Evergreen
        found.file.unlink(missing_ok=True)


def _last_move(home: Home, model: str) -> str | None:
    """The champion according to the newest promotion or rollback on record, or None."""
    decisions = read_decisions(home, model).undamaged()
    return next((one.to for one in reversed(decisions) if one.to is not None), None)


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
        place = (
            parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        )  # passwords change
        folder /= hashlib.sha256(place.encode()).hexdigest()[:16]
    return folder / f"{model}.jsonl"
