"""Mark of a rollback in progress: a tag of the replaced version, with which the home can finish the rollback.

In: a registered model of an MLflow store that several homes may share. Out: the marks of a home. A mark is
`HOME:TARGET:TURN`: the identity of the home, the version to which the rollback returns, and the turn of the registry
lock. Marks of earlier versions of Evergreen are the identity alone.
"""

from typing import TYPE_CHECKING, NamedTuple

from tasks.trackers.paged_search import all_pages

if TYPE_CHECKING:
    from mlflow import MlflowClient

ROLLBACK_TAG = "evergreen.rollback"  # of a version that is being rolled back


class Mark(NamedTuple):
    """A rollback from version `left` to `to` in turn `turn`; earlier Evergreen versions wrote no `to` and `turn`."""

    left: str
    to: str | None = None
    turn: int | None = None


def mark_text(identity: str, to: str, turn: int) -> str:
    """The tag's value for a rollback to version `to` by the home with this identity."""
    return f"{identity}:{to}:{turn}"


def marks_of(client: "MlflowClient", model: str, identity: str) -> list[Mark]:
    """The marks of the home with this identity."""
    wanted = f"name = '{model}' and tags.`{ROLLBACK_TAG}` LIKE '{identity}%'"
    versions = all_pages(client.search_model_versions, wanted)
    return [_parsed(str(version.version), version.tags[ROLLBACK_TAG]) for version in versions]


def _parsed(left: str, text: str) -> Mark:
    _, _, move = text.partition(":")
    to, _, turn = move.partition(":")
    return Mark(left, to, int(turn)) if to and turn.isdecimal() else Mark(left)
