"""Held datasets, and that a person accepted them: tags of the registered model.

In: a registered model that has a champion. One tag names the dataset that was held last; each acceptance is a tag of
its own, named after the dataset's fingerprint, and counts for that dataset. Both are written under the registry lock.
"""

import time
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from tasks.registry.lock import registry_lock
from tasks.trackers.provenance import user_name
from training.errors import SettingError
from training.profile_records import Acceptance, DataCheck
from training.record_base import Record
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

HELD_TAG, _ACCEPTED_TAG = "evergreen.held", "evergreen.accepted."
_LONGEST = 400  # characters of each text that a tag contains; MLflow takes 5,000 for the tag


class HeldDataset(Record):
    """The dataset that was held last, as the registry knows it."""

    fingerprint: str
    champion: str = Field(description="version with whose dataset it was compared")
    run_id: str = Field(description="the MLflow run, with the changes and the dataset's profile")
    recipe: str = Field(description="name of the recipe")
    at: str
    why: str = Field(description="the first change that holds")


def held_in(tags: dict[str, str]) -> HeldDataset | None:
    """The dataset that the tags of a registered model name as held."""
    try:
        return HeldDataset.model_validate_json(tags[HELD_TAG]) if HELD_TAG in tags else None
    except ValidationError:  # a person changed the tag in MLflow
        return None


def acceptances_in(tags: dict[str, str]) -> list[Acceptance]:
    """The acceptances in the tags of a registered model, the newest first."""
    found = []
    for name, text in tags.items():
        if name.startswith(_ACCEPTED_TAG):
            try:
                found.append(Acceptance.model_validate_json(text))
            except ValidationError:  # a person changed the tag in MLflow
                continue
    return sorted(found, key=lambda acceptance: acceptance.at, reverse=True)


def note_held(client: "MlflowClient", home: Home, check: DataCheck, run_id: str, recipe: str) -> None:
    """Tag the registered model with the dataset that is held."""
    held = HeldDataset(
        fingerprint=check.fingerprint,
        champion=check.reference_version or "",
        run_id=run_id,
        recipe=recipe,
        at=_now(),
        why=check.changes[0].sentence[:_LONGEST],
    )
    with registry_lock(client, home, check.model) as lease:
        lease.check()
        client.set_registered_model_tag(check.model, HELD_TAG, held.model_dump_json())


def forget_held(client: "MlflowClient", home: Home, model: str) -> None:
    """Remove the tag of a held dataset: a later night's data are as the champion's."""
    with registry_lock(client, home, model) as lease:
        if HELD_TAG in client.get_registered_model(model).tags:
            lease.check()
            client.delete_registered_model_tag(model, HELD_TAG)


def accept_held(client: "MlflowClient", home: Home, model: str, why: str) -> Acceptance:
    """Accept the dataset that was held last, and only this one; `model` is registered.

    Raises :class:`SettingError` when no dataset is held.
    """
    with registry_lock(client, home, model) as lease:
        held = held_in(client.get_registered_model(model).tags)
        if held is None:
            raise SettingError(
                f"model {model}: no data are held, so there is nothing to accept. A run that ends with status 6 holds "
                "its data; the next run whose data are as the champion's forgets them."
            )
        acceptance = Acceptance(
            fingerprint=held.fingerprint,
            who=user_name() or "unknown",
            at=_now(),
            why=why[:_LONGEST],
            champion=held.champion,
            run_id=held.run_id,
        )
        lease.check()
        name = _ACCEPTED_TAG + held.fingerprint[:16]
        client.set_registered_model_tag(model, name, acceptance.model_dump_json())
        lease.check()
        client.delete_registered_model_tag(model, HELD_TAG)
    return acceptance


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
