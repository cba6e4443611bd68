"""The outcome of a search, and the recorded outcome of an earlier search, read without starting Prefect or Ray."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from flows.preview import release_if_unchanged
from tasks.registry.initial_weights import find_start
from training import identity
from training.errors import EvergreenError
from training.plan import choose_source
from training.ray_cluster.capacity import resolve_here
from training.recipe import load
from training.records import Release
from training.redaction import redact
from training.search.generations import grown
from training.search.planning import (
    PlannedSearch,
    Request,
    at_version,
    check_request,
    plan_search,
    with_values,
)
from training.search.records import Search, SearchResult
from training.search.results import known_results, without_winner
from training.search.space import text_of
from training.storage.paths import Home


def outcome_of(
    recipe: str, planned: PlannedSearch, search: Search, overrides: Mapping[str, Any], release: Release | None
) -> SearchResult:
    """The outcome of a finished search. Raises the error of :func:`without_winner` if no trial won."""
    winner = search.winner
    if winner is None:
        raise without_winner(search)
    assignments = _assignments(with_values(overrides, planned.overrides_of(winner)))
    options = " ".join(f"--set {shlex.quote(redact(assignment))}" for assignment in assignments)
    return SearchResult(
        search=search,
        winner=winner.number,
        command=f"evergreen retrain {shlex.quote(recipe)} {options}",
        picture=str(planned.picture),
        release=release,
    )


def outcome_if_done(
    recipe: str, request: Request, overrides: Mapping[str, Any], home: Home, retrain_winner: bool
) -> SearchResult | None:
    """The outcome if an earlier command completed the search and, with `retrain_winner`, the retraining; else None.

    Returns None after a transient error, too: the flow retries. Raises any other :class:`EvergreenError`, such as
    :class:`training.errors.SettingError` for a recipe, a space or settings with which no search is possible.
    """
    chosen, ref = load(recipe)
    settings = resolve_here(chosen.settings, overrides)
    check_request(request, settings)
    if not identity.runs_of(home, ref.name):
        return None
    try:
        files = choose_source(chosen, settings, home).fetch(home.sources / chosen.name)
        overrides, start = at_version(overrides, find_start(home, ref.name, settings))
        settings = resolve_here(chosen.settings, overrides)
        planned = grown(plan_search(home, ref, settings, files, request, start))
        search = known_results(planned)
        if not search.complete:
            return None
        release = None
        if retrain_winner and search.winner is not None:
            release = release_if_unchanged(
                recipe, with_values(overrides, planned.overrides_of(search.winner)), home, False
            )
            if release is None:
                return None
        made = outcome_of(recipe, planned, search, overrides, release)
        return made.model_copy(update={"reused": True})
    except EvergreenError as error:
        if error.transient:  # the flow retries, and waits longer
            return None
        raise


def _assignments(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _assignments(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={text_of(value)}"
