"""Find the version that an alias points to, or raise an error that lists the registered models and aliases."""

from typing import TYPE_CHECKING

from tasks.registry.aliases import CHAMPION, PREVIOUS, champion_of
from tasks.trackers.embedded_store import registered_models
from tasks.trackers.paged_search import all_pages
from training.errors import SettingError
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient


def check_known(home: Home, model: str, alias: str = CHAMPION) -> None:
    """Check that the embedded store of `home` has `alias` of `model`: takes milliseconds, without importing MLflow.

    Raises :class:`SettingError`, which lists what is registered, when the store lacks the alias. A store that can't
    be read passes this check: MLflow opens the store later, and its error gives the reason.
    """
    known = registered_models(home)
    if known is not None and alias not in known.get(model, {}):
        raise _missing(model, alias, known)


def find_alias(client: "MlflowClient", model: str, alias: str) -> str:
    """The version that `alias` of `model` points to.

    Raises :class:`SettingError`, which lists what is registered, when there is no such model or alias.
    """
    number = champion_of(client, model, alias)
    if number is not None:
        return number
    raise _missing(model, alias, _aliases_by_model(client))


def _missing(model: str, alias: str, known: dict[str, dict[str, str]]) -> SettingError:
    missing = f"no alias {alias!r}" if model in known else "no such model"
    return SettingError(f"model {model!r}: {missing}. {_listed(known)}")


def check_can_return(client: "MlflowClient", model: str, wanted: str | None = None) -> None:
    """Check that a rollback is possible: `model` has a champion, and a predecessor unless a version is `wanted`.

    Raises :class:`SettingError`, which lists what is registered, when no rollback is possible.
    """
    now, before = champion_of(client, model), wanted or champion_of(client, model, PREVIOUS)
    if now is not None and before is not None:
        return  # both aliases are equal for a moment during a promotion; `roll_back` compares them under the lock
    known = _aliases_by_model(client)
    if model not in known:
        why = "no such model"
    elif now is None:
        why = f"no version is {CHAMPION}, so there is nothing to return from"
    else:
        why = f"the champion, version {now}, has no predecessor, so there is nothing to return to"
    raise SettingError(f"model {model!r}: {why}. {_listed(known)}")


def _aliases_by_model(client: "MlflowClient") -> dict[str, dict[str, str]]:
    return {model.name: dict(model.aliases) for model in all_pages(client.search_registered_models)}


def _listed(known: dict[str, dict[str, str]]) -> str:
    if not known:
        return "No model is registered yet; `evergreen retrain` registers the first."
    listed = "; ".join(f"{name} ({_described(aliases)})" for name, aliases in sorted(known.items()))
    return f"Registered are: {listed}."


def _described(aliases: dict[str, str]) -> str:
    return ", ".join(f"{alias} -> {number}" for alias, number in sorted(aliases.items())) or "no alias"
