"""In: a recipe or a model. Out: the records of its nights, of all homes that share the tracking server, oldest first.

MLflow is asked first; this home's files add the nights that MLflow lacks, and all nights while MLflow is away.
"""

import logging

from tasks.night import as_killed
from tasks.trackers.embedded_store import registered_models
from tasks.trackers.nights import nights_in_embedded_store, nights_in_mlflow
from training.errors import EvergreenError, SettingError, TransientError
from training.night_record import NightRecord
from training.recipe import BUILT_IN, load
from training.storage.night_files import models_with_nights, nights_of_home
from training.storage.paths import Home
from training.storage.run_lock import check_no_run

log = logging.getLogger("evergreen.history")


def find_nights(name: str, home: Home, uri: str | None = None) -> tuple[str, list[NightRecord]]:
    """The registered model that `name` means, a recipe or a model, and the nights of this model.

    `uri` is the address of MLflow's store; None: that of the recipe, if `name` is one, else the home's own store.
    MLflow is imported only for a store that is not the home's own. Raises :class:`SettingError` for a model without
    nights.
    """
    model = name
    if name.endswith(".py") or name in BUILT_IN:
        tracking = load(name)[0].settings.tracking
        model, uri = tracking.model or load(name)[1].name, uri or tracking.uri
    nights = nights_of(home, model, uri)
    if not nights:
        raise _without_nights(home, model)
    return model, nights


def nights_of(home: Home, model: str, uri: str | None) -> list[NightRecord]:
    """All nights of a model, oldest first; without those that only MLflow has if MLflow does not answer."""
    in_home = {night.night: _as_it_is(home, night) for night in nights_of_home(home, model)}
    by_name = {night.night: night for night in _in_store(home, model, uri)} | in_home
    return [by_name[name] for name in sorted(by_name)]


def ended_without_files(home: Home, recipe: str, run_key: str) -> NightRecord | None:
    """The newest night of a recipe in this home, if it ended without a release and is no night of the run named.

    `run_key` may be the beginning of a key. Such a night may have no run of its own: it ended before, as by bad data.
    """
    nights = [
        night
        for model in models_with_nights(home)
        for night in nights_of_home(home, model)
        if night.recipe == recipe
    ]
    newest = max(nights, key=lambda night: night.night, default=None)
    if newest is None or newest.version or newest.outcome == "running":
        return None
    return None if newest.run_key.startswith(run_key) else newest


def _in_store(home: Home, model: str, uri: str | None) -> list[NightRecord]:
    if uri is None:
        return nights_in_embedded_store(home, model)
    from tasks.trackers.mlflow_store import connect

    try:
        return nights_in_mlflow(connect(uri, home), model)
    except EvergreenError as error:
        log.warning("these are the nights of this home alone: %s", error)
        return []


def _as_it_is(home: Home, night: NightRecord) -> NightRecord:
    """A night under way as it is; as interrupted if no process works on it any more."""
    if night.outcome != "running":
        return night
    try:
        check_no_run(home, night.recipe)
    except TransientError:
        return night
    return as_killed(night)


def _without_nights(home: Home, model: str) -> SettingError:
    recorded = models_with_nights(home)
    listed = (
        f"Models with nights here: {', '.join(recorded)}." if recorded else "No night is recorded here yet."
    )
    if model in (registered_models(home) or {}):
        return SettingError(
            f"model {model!r}: it is registered, but no night of `evergreen retrain` is recorded. {listed}"
        )
    return SettingError(
        f"model {model!r}: no such model or recipe. {listed} For another MLflow store, add --tracking-uri; for an own "
        "recipe, give the path of its file."
    )
