"""Rollback: make a former champion the champion again.

A rollback takes several writes to MLflow. The mark of `tasks/registry/rollback_mark.py` tells the home's next
rollback or registration that a rollback was interrupted, and what its remaining steps are.
"""

import logging
import shlex
from typing import TYPE_CHECKING

from tasks.registry.aliases import (
    PREVIOUS,
    ROLLED_BACK_TAG,
    TURN_TAG,
    champion_of,
    load_version,
    make_champion,
    point,
    version_tags,
)
from tasks.registry.decisions import (
    Decision,
    last_champion,
    note_that_mark_stays,
    read_decisions,
    record_decision,
)
from tasks.registry.lock import Lease, LockLostError, registry_lock
from tasks.registry.rollback_mark import ROLLBACK_TAG, Mark, mark_text, marks_of
from training.errors import SettingError
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.registry")


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
        left, target = champion_of(client, model), wanted or champion_of(client, model, PREVIOUS)
        if left is not None and left == wanted:
            # The tag of a rollback that was interrupted early.
            if ROLLED_BACK_TAG in version_tags(client, model, left):
                lease.check()
                client.delete_model_version_tag(model, left, ROLLED_BACK_TAG)
            return left, left
        if left is None or target is None or left == target:
            raise SettingError(
                f"model {model}: "
                + ("there is no champion" if left is None else "the champion has no predecessor")
                + ", so there is nothing to return to."
            )
        if wanted is None:
            _check_not_rolled_back(client, model, left, target)
        else:
            _check_was_champion(client, home, model, wanted)
        load_version(home, model, target)
        why = why or "by hand"
        # A return to a newer version that was rolled back undoes that rollback: `left` is not bad.
        if int(left) > int(target) or ROLLED_BACK_TAG not in version_tags(client, model, target):
            lease.check()
            client.set_model_version_tag(model, left, ROLLED_BACK_TAG, why)
        lease.check()
        mark = mark_text(home.identity, target, lease.turn)
        client.set_model_version_tag(model, left, ROLLBACK_TAG, mark)
        make_champion(lease, target)
        _complete_rollback(lease, left, target, why, lease.turn)
        return left, target


def _check_not_rolled_back(client: "MlflowClient", model: str, left: str, target: str) -> None:
    why = version_tags(client, model, target).get(ROLLED_BACK_TAG)
    if why is not None:
        raise SettingError(
            f"model {model}: version {target}, the champion before version {left}, was rolled back ({why}), so nothing "
            f"was changed. Name the former champion to return to: evergreen rollback {shlex.quote(model)} --to VERSION"
        )


def _check_was_champion(client: "MlflowClient", home: Home, model: str, number: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        tags = version_tags(client, model, number)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        raise SettingError(
            f"model {model}: there is no version {number}. The model's page in `evergreen ui` lists the versions."
        ) from error
    decided = (
        number in (decision.to, decision.before) for decision in read_decisions(home, model).undamaged()
    )
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
    marks = (
        _made_champion(client, home, mark, model, now) for mark in marks_of(client, model, home.identity)
    )
    return next((mark for mark in marks if mark is not None), None)


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
    left = last_champion(home, model)
    if left in (None, now) or left != mark.left or champion_of(client, model, PREVIOUS) not in (now, left):
        return None
    return mark._replace(to=now)


def _is_done(home: Home, mark: Mark, model: str) -> bool:
    """Whether the rollback is done although the mark is still there, because the mark could not be removed."""
    decisions = read_decisions(home, model).undamaged()
    return any(
        decision.mark_stays and (decision.before, decision.to, decision.turn) == mark
        for decision in decisions
    )


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


def _complete_rollback(lease: Lease, left: str, target: str, why: str, turn: int) -> None:
    """Do the steps after the champion's move in `turn`; the record and the removal of the mark last, in this order."""
    client, model = lease.client, lease.model
    point(lease, PREVIOUS, left)
    if ROLLED_BACK_TAG in version_tags(client, model, target):
        lease.check()
        client.delete_model_version_tag(model, target, ROLLED_BACK_TAG)
    record_decision(
        lease.home, model, Decision(action="rollback", before=left, to=target, why=why, turn=turn)
    )
    _remove_marks(lease, target, left)


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
        note_that_mark_stays(lease.home, model)
        log.warning(
            "model %s: the rollback is done, but tag %s was not removed (%s)", model, ROLLBACK_TAG, error
        )
