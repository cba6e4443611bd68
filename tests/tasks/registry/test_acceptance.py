"""Held datasets and their acceptance, as tags of a registered model."""

from typing import Any

import pytest
from registry_in_memory import RegistryInMemory

from tasks.registry.acceptance import (
    HELD_TAG,
    accept_held,
    acceptances_in,
    forget_held,
    held_in,
    note_held,
)
from training.errors import SettingError
from training.profile_records import Change, DataCheck
from training.storage.paths import Home

CHANGE = Change(
    what="scale",
    column="weight",
    reference="71",
    current="71,000",
    measure=1000,
    limit=10,
    effect="hold",
    sentence="grams",
)


@pytest.fixture
def registry() -> Any:
    made = RegistryInMemory()
    made.create_registered_model("m")
    return made


def hold(registry: Any, home: Home, fingerprint: str) -> None:
    check = DataCheck(
        outcome="held",
        model="m",
        fingerprint=fingerprint,
        summary="held",
        reference_version="3",
        changes=(CHANGE,),
    )
    note_held(registry, home, check, "run", "recipe")


def tags(registry: Any) -> dict[str, str]:
    return dict(registry.get_registered_model("m").tags)


def test_the_last_held_dataset_is_accepted_once(home: Home, registry: Any) -> None:
    hold(registry, home, "a" * 64)
    hold(registry, home, "b" * 64)
    accepted = accept_held(registry, home, "m", "new scales")
    assert (accepted.fingerprint, accepted.champion, accepted.run_id) == ("b" * 64, "3", "run")
    assert accepted.why == "new scales"
    assert accepted.who
    assert acceptances_in(tags(registry)) == [accepted]
    assert held_in(tags(registry)) is None
    with pytest.raises(SettingError, match="no data are held"):
        accept_held(registry, home, "m", "again")


def test_a_later_quiet_night_forgets_the_held_one(home: Home, registry: Any) -> None:
    hold(registry, home, "a" * 64)
    forget_held(registry, home, "m")
    with pytest.raises(SettingError, match="no data are held"):
        accept_held(registry, home, "m", "late")


def test_tags_that_a_person_changed_count_for_nothing(home: Home, registry: Any) -> None:
    registry.set_registered_model_tag("m", HELD_TAG, "yes")
    registry.set_registered_model_tag("m", "evergreen.accepted.abc", "{}")
    assert held_in(tags(registry)) is None
    assert acceptances_in(tags(registry)) == []
