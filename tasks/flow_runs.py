"""What Prefect shows of a retraining: the flow run's name, its outcome, and the state Crashed of killed runs.

An open-source Prefect server never detects by itself that the process of a flow run was killed.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from prefect.runtime import flow_run

from tasks.report_page.wording import reason, was_promoted
from training.printable import printable
from training.profile_records import DataCheck
from training.records import Release
from training.storage.paths import Home

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

log = logging.getLogger("evergreen.flow_runs")
Result = TypeVar("Result")
HELD = "Held"  # name of the state Completed of a run that trained nothing, as its data changed


def run_name() -> str:
    """Name of the flow run: the name that the user chose, or `FLOW-RECIPE` instead of Prefect's random words."""
    given = str(flow_run.name)
    if not _is_random(given):
        return given
    recipe = str(flow_run.parameters.get("recipe"))
    return f"{flow_run.flow_name}-{Path(recipe).stem if recipe.endswith('.py') else recipe}"


def _is_random(name: str) -> bool:
    """Whether Prefect may have drawn the name, as `dashing-lynx`: an adjective and an animal of its lists."""
    words, lists = name.split("-"), _random_words()
    return len(words) == len(lists) and all(word in known for word, known in zip(words, lists, strict=True))


@cache
def _random_words() -> tuple[frozenset[str], ...]:
    """The words of each part of Prefect's random names; only by them can a random name be recognised."""
    from coolname.data import config

    parts: dict[str, Any] = config
    return tuple(
        frozenset(word for part in parts[kind]["lists"] for word in parts[part]["words"])
        for kind in parts["an"]["lists"]
    )


class ReturnedResult(Generic[Result]):
    """The result of this process's newest flow run of one flow.

    When Prefect's server does not confirm the final state, Prefect may lose the result, or call the flow function of
    the same flow run again, although its work is done.
    """

    def __init__(self) -> None:
        self._of: dict[object, Result] = {}

    def begin(self) -> Result | None:
        """Called first in a flow function: the result that it has returned in this flow run before, or None."""
        again = self._of.get(flow_run.id)
        if again is None:
            self._of.clear()
        return again

    def keep(self, result: Result) -> None:
        """Called last in a flow function."""
        self._of = {flow_run.id or object(): result}

    def forget(self) -> None:
        """Called before a flow run whose result :meth:`newest` shall give."""
        self._of.clear()

    def newest(self) -> Result | None:
        """The result of the newest flow run, or None if it has not returned."""
        return next(iter(self._of.values()), None)


def completed(release: Release | DataCheck) -> "State[Release | DataCheck]":
    """The state Completed, whose message says in one sentence what happened to the model; named Held for a held run."""
    from prefect.states import Completed

    if isinstance(release, DataCheck):
        return Completed(name=HELD, message=printable(release.summary), data=release)
    return Completed(message=outcome(release), data=release)


def outcome(release: Release) -> str:
    """Outcome of a retraining as one sentence that begins with unchanged, promoted or kept."""
    version = f"{release.model} version {release.version}"
    alias = f" ({release.alias})" if release.alias != "none" else ""
    if release.reused:
        return f"unchanged: {version}{alias} was made from the same data, recipe, code and settings"
    why = reason(release.verdict, release.alias)
    if release.alias == "champion" and not was_promoted(release):
        return f"unchanged: {version} is the champion already: {why}"
    if release.alias == "champion":
        return f"promoted: {version} is the champion: {why}"
    before = release.verdict.champion_version
    stays = f"version {before} stays champion" if before else "there is no champion yet"
    return f"kept: {version}{alias}; {stays}: {why}"


def artifact_key(recipe: str, name: str) -> str:
    """Key of one of a recipe's artifacts, in the characters that Prefect accepts: a to z, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{recipe}-{name}".lower()).strip("-")


@contextmanager
def tag_flow_runs(home: Home, recipe: str) -> Iterator[None]:
    """Tag the flow runs of the block, so that a later flow run of the same home and recipe recognises them."""
    from prefect import tags

    with tags(*_tags(home, recipe)):
        yield


def close_killed(home: Home, recipe: str) -> None:
    """Mark as Crashed the flow runs of this home and recipe that still are Running, Pending or Cancelling.

    The caller holds the recipe's run lock, so the processes of these flow runs are gone. A Prefect server that does
    not answer is ignored.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import State, StateType
    from prefect.states import Crashed

    active = filters.FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING, StateType.CANCELLING])
    ours = filters.FlowRunFilter(
        tags=filters.FlowRunFilterTags(all_=_tags(home, recipe)),
        state=filters.FlowRunFilterState(type=active),
    )
    try:
        with get_client(sync_client=True) as client:
            for run in client.read_flow_runs(flow_run_filter=ours):
                if str(run.id) != str(flow_run.id):
                    gone: State[None] = Crashed(
                        message="The process ended without a report; the recipe's next run resumes the work."
                    )
                    client.set_flow_run_state(run.id, gone, force=True)
    except Exception as error:  # failing to correct old flow runs must not stop this run
        log.debug("flow runs that were killed could not be marked: %s", error)


def _tags(home: Home, recipe: str) -> list[str]:
    return [f"evergreen-home:{home.identity}", f"recipe:{recipe}"]
