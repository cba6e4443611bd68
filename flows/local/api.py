"""Retrain, tune, plan, predict and roll back on this machine: the functions of the command line and of the Python API.

A retraining starts a Prefect server and a Ray cluster, which end with the retraining, unless the user has configured
a server or a cluster. Prediction and rollback run as flows only if the user has configured a Prefect server, which
then shows the flow run.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from training.errors import SettingError
from training.storage.paths import Home, home_to_write

if TYPE_CHECKING:
    from flows.preview import Preview
    from tasks.flow_runs import ReturnedResult
    from tasks.predict import PredictionSummary
    from training.profile_records import Acceptance, DataCheck
    from training.recipe_declaration import Recipe
    from training.records import Release
    from training.search.planning import Request
    from training.search.records import Scheduler, SearchResult

log = logging.getLogger("evergreen.command")

Result = TypeVar("Result")

_EXAMPLE = '{"training.epochs": 3}'


def retrain(
    recipe: "str | Path | Recipe", settings: Mapping[str, Any] | None = None, *, force: bool = False
) -> "Release":
    """Bring the recipe's model up to date: train, compare with the champion, promote or keep.

    `recipe` is a recipe's name, the path of a recipe file, or the object `recipe` of such a file. `settings` override
    those of the recipe, as `{"training.epochs": 3}`, `{"training": {"epochs": 3}}` or with the objects of sections,
    of which the given fields count. Without `force`, a run whose data, recipe, code, seed and settings did not change
    returns the earlier release. The home is EVERGREEN_HOME. Raises :class:`training.errors.EvergreenError`, whose
    message contains the cause and its remedy.
    """
    from flows.local.prefect_server import prefect_api
    from flows.preview import release_if_unchanged
    from flows.stopwatch import call_timed, with_whole_command
    from tasks.night import night_recorded

    name, overrides = _named(recipe), _nested(settings)
    with call_timed():
        home = prepared()
        log.info("%s: looking for finished work in %s", name, home.root)
        with night_recorded(name, overrides) as night:
            release = release_if_unchanged(name, overrides, home, force)
            if release is None:
                log.info("starting Prefect's server, and importing what the run needs")
                with prefect_api(home, meanwhile=lambda: _flow_and_ray(name, overrides)):
                    release = _run_flow(name, overrides, force)
            night.ended(release)
        return with_whole_command(release)


def tune(
    recipe: "str | Path | Recipe",
    space: Mapping[str, str],
    *,
    trials: int = 8,
    scheduler: "Scheduler" = "asha",
    concurrent: int | None = None,
    seed: int = 0,
    generations: int | None = None,
    settings: Mapping[str, Any] | None = None,
    retrain_winner: bool = True,
) -> "SearchResult":
    """Search settings with less validation loss, then retrain with the best as :func:`retrain` does.

    `space` has the values of each searched setting: `{"training.learning_rate": "loguniform(1e-4,1e-1)"}`. A trial
    trains the recipe with other values, in one process; `scheduler` "asha" ends worse trials early, "none" does not,
    and "pbt" (population-based training) trains `trials` trials in `generations` generations (default: 4), each from
    the weights of the one before. `concurrent` limits the trials at a time; None: as many as CPUs or GPUs allow.
    `settings` are shared by all trials and the retraining. Trials that were trained before are reused. Raises
    :class:`training.errors.EvergreenError`.
    """
    from flows.local.prefect_server import prefect_api
    from flows.search_outcome import outcome_if_done
    from training.search.planning import Request

    name, overrides = _named(recipe), _nested(settings)
    home, began = prepared(), time.perf_counter()
    request = Request(space, trials, scheduler, seed, concurrent, generations)
    result = outcome_if_done(name, request, overrides, home, retrain_winner)
    if result is None:
        log.info("%s: starting Prefect's server, and importing what the search needs", name)
        with prefect_api(home):
            result = _run_search(name, request, overrides, retrain_winner)
    return result.model_copy(update={"seconds": time.perf_counter() - began})


def plan(
    recipe: "str | Path | Recipe", settings: Mapping[str, Any] | None = None, *, force: bool = False
) -> "Preview":
    """Preview :func:`retrain` without training: which steps would run, which are done already, and the time needed.

    Arguments and errors are those of :func:`retrain`.
    """
    from flows.preview import preview

    return preview(_named(recipe), _nested(settings), prepared(), force)


def predict(
    model: str,
    input: str | Path,
    output: str | Path,
    *,
    alias: str = "champion",
    skip_bad: bool = False,
    overwrite: bool = False,
    tracking_uri: str | None = None,
) -> "PredictionSummary":
    """Score all images, rows or texts at `input` with the version of `model` that `alias` names; write to `output`.

    `input` is a folder of images, or Parquet with a column `image`; for a model of a table, CSV or Parquet; for a model
    of text, CSV, TSV, Parquet or `.txt` with one text on each line. The result is Parquet, or CSV if
    `output` ends in .csv, with a class and probabilities for each image, row or text, or with the predicted number for
    a regression. `skip_bad` leaves
    unreadable inputs out instead of refusing them; `overwrite` replaces `output`. Raises
    :class:`training.errors.SettingError` for an unknown model or alias and :class:`training.errors.DataError` for
    inputs that can't be read.
    """
    from tasks.registry.lookup import check_known

    check_store_named(tracking_uri)
    home = prepared()
    if tracking_uri is None:
        check_known(home, model, alias)
    chosen: dict[str, Any] = {
        "alias": alias,
        "skip_bad": skip_bad,
        "overwrite": overwrite,
        "tracking_uri": tracking_uri,
    }

    def as_flow() -> "PredictionSummary":
        from flows.predict import run_prediction
        from training.redaction import hidden

        return run_prediction(
            model, str(input), str(output), **chosen | {"tracking_uri": hidden(tracking_uri)}
        )

    def as_function() -> "PredictionSummary":
        from tasks.predict import predict as step

        made: PredictionSummary = step.fn(str(home.root), model, str(input), str(output), **chosen)
        return made

    return _shown_by_prefect(home, as_flow, as_function)


def rollback(
    model: str, why: str = "", *, to: str | None = None, tracking_uri: str | None = None
) -> tuple[str, str]:
    """Return to the champion before, or to version `to`, a former champion; returns the version numbers (from, to).

    `why` is recorded with the decision. When `to` is champion already, nothing changes, and both numbers are equal.
    Raises :class:`training.errors.SettingError` when there is no version to return to, when `to` was never champion,
    and, without `to`, when the champion before was rolled back itself.
    """
    from tasks.registry.lookup import check_known

    to = None if to is None else str(to)  # a caller may give a number
    check_store_named(tracking_uri)
    home = prepared()
    if tracking_uri is None:
        check_known(home, model)

    def as_flow() -> tuple[str, str]:
        from flows.rollback import rolled_back
        from training.redaction import hidden

        return rolled_back(model, why, hidden(tracking_uri), to)

    def as_function() -> tuple[str, str]:
        from tasks.rollback import rollback as step

        moved: tuple[str, str] = step.fn(str(home.root), model, why, tracking_uri, to)
        return moved

    return _shown_by_prefect(home, as_flow, as_function)


def accept(model: str, why: str, *, tracking_uri: str | None = None) -> "Acceptance":
    """Accept the data with which the model's last run was held, and only these: the next run trains on them.

    `why` is recorded in the registry, with the user and the time. Raises :class:`training.errors.SettingError` for an
    unknown model, an empty `why`, and when no data are held.
    """
    from tasks.accept import accept as accepted

    check_store_named(tracking_uri)
    return accepted(prepared(), model, why, tracking_uri)


def check_store_named(tracking_uri: str | None) -> None:
    """Raise :class:`SettingError` for an empty URI, as from an unset variable: it would select the home's store."""
    if tracking_uri == "":
        raise SettingError(
            "tracking_uri: it is empty; give the URI of MLflow's store, or leave it out for the store under "
            "EVERGREEN_HOME"
        )


def prepared() -> Home:
    """Set up this process's environment for a call that trains nothing; returns the home."""
    from flows.local.environment import prepare

    home = home_to_write(for_run=False)
    prepare(home)
    return home


def _shown_by_prefect(home: Home, as_flow: Callable[[], Result], as_function: Callable[[], Result]) -> Result:
    """Call `as_flow` if the user has configured a Prefect server, else `as_function`, which starts no server."""
    from flows.local.environment import api_is_configured, quieten

    if not api_is_configured():
        quieten()  # MLflow sets its own log levels when it is imported
        return as_function()
    from flows.local.prefect_server import prefect_api

    quieten()
    with prefect_api(home):
        return as_flow()


@contextmanager
def _flow_and_ray(recipe: str, overrides: dict[str, Any]) -> Iterator[None]:
    """Import the modules that the flow needs, and start the Ray cluster that it will use, ahead of the flow."""
    import flows.retrain  # noqa: F401
    from training.ray_cluster.cluster import ray_ahead
    from training.recipe import load
    from training.settings.overrides import resolve

    with ray_ahead(resolve(load(recipe)[0].settings, overrides)):
        yield


def _run_flow(recipe: str, overrides: dict[str, Any], force: bool) -> "Release":
    from flows.retrain import retrain as flow
    from flows.retrain import returned
    from training.redaction import hide_credentials

    return _not_held(
        _recorded(recipe, lambda: flow(recipe, hide_credentials(overrides), force=force), returned)
    )


def _run_search(
    recipe: str, request: "Request", overrides: dict[str, Any], retrain_winner: bool
) -> "SearchResult":
    from flows.tune import returned
    from flows.tune import tune as flow
    from training.redaction import hide_credentials

    def call() -> "SearchResult | DataCheck":
        made: SearchResult | DataCheck = flow(
            recipe,
            dict(request.space),
            request.trials,
            request.scheduler,
            request.concurrent,
            request.seed,
            request.generations,
            hide_credentials(overrides),
            retrain_winner,
        )
        return made

    return _not_held(_recorded(recipe, call, returned))


def _not_held(result: "Result | DataCheck") -> Result:
    """The result of a flow. Raises :class:`HeldError` if the flow was held."""
    from training.errors import HeldError
    from training.profile_records import DataCheck

    if isinstance(result, DataCheck):
        raise HeldError(result)
    return result


def _recorded(recipe: str, call: Callable[[], Result], returned: "ReturnedResult[Result]") -> Result:
    """Call a flow, whose flow runs are tagged; `returned` has its result if Prefect has lost the result.

    Prefect's server also keeps no result of a run that was cancelled there meanwhile, which ends no local run.
    """
    from prefect.exceptions import MissingResult, UnfinishedRun

    from flows.local.environment import quieten
    from tasks.flow_runs import tag_flow_runs
    from training.recipe import load

    quieten()  # Prefect set its own log levels when it was imported
    with tag_flow_runs(home_to_write(), load(recipe)[1].name):
        returned.forget()
        try:
            return call()
        except (MissingResult, UnfinishedRun) as lost:
            result = returned.newest()
            if result is None:
                raise
            if isinstance(lost, UnfinishedRun):
                log.warning(
                    "the run was cancelled in Prefect, which does not end a local run; its work is done"
                )
            return result


def _named(recipe: object) -> str:
    """The recipe's name or path as text. Raises :class:`SettingError` for an object that no file defines."""
    from training.recipe_declaration import Recipe

    if isinstance(recipe, Recipe):
        from training.recipe import load
        from training.recipe_file import check_same, file_of

        path = file_of(recipe)
        check_same(load(path)[0], recipe, path)
        return str(path)
    if not isinstance(recipe, str | Path):
        raise SettingError(
            "recipe: expected the name of a recipe, the path of a recipe file or the recipe of a file, not an object "
            f"of the type {type(recipe).__name__}"
        )
    return str(recipe)


def _nested(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Settings with dotted names converted to nested mappings; nested settings stay as they are.

    Raises :class:`SettingError` for anything but a mapping from names, and for a section that is also given one value.
    """
    if settings is not None and not isinstance(settings, Mapping):
        raise SettingError(
            f"settings: expected a dict such as {_EXAMPLE}, not an object of the type {type(settings).__name__}"
        )
    tree: dict[str, Any] = {}
    for dotted, value in (settings or {}).items():
        if not isinstance(dotted, str):
            raise SettingError(
                f"settings: {dotted!r} is no name of a setting; write a dict such as {_EXAMPLE}"
            )
        *sections, name = dotted.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
            if not isinstance(branch, dict):
                raise SettingError(
                    f"settings: {section} is a section, and is also given the value {branch!r}; remove that value, and "
                    f"give single settings, such as {_EXAMPLE}"
                )
        plain = _plain(value)
        if isinstance(plain, dict) and isinstance(branch.get(name), dict):
            branch[name] |= plain
        else:
            branch[name] = plain
    return tree


def _plain(value: Any) -> Any:
    """A value of a setting: of a section's object, the fields that were given."""
    from training.settings.sections import Section

    if isinstance(value, Section):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        return {name: _plain(field_value) for name, field_value in value.items()}
    return value
