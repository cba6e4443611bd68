"""A rollback that is interrupted anywhere and repeated has the outcome of an undisturbed rollback."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from registry_in_memory import RegistryInMemory

import tasks.registry.rollback
from tasks.registry.aliases import CHAMPION, PREVIOUS, ROLLED_BACK_TAG, TURN_TAG, move_alias
from tasks.registry.decisions import read_decisions
from tasks.registry.lock import registry_lock
from tasks.registry.rollback import finish_rollback, roll_back, unfinished_rollback
from tasks.registry.rollback_mark import ROLLBACK_TAG
from training.errors import SettingError
from training.storage.paths import Home

MODEL = "digits"


class Crash(BaseException):
    """A power cut; a BaseException that no code of Evergreen catches by name."""


class Cut:
    """A client of `registry` that crashes before or after its call number `at`, and then answers no call."""

    def __init__(self, registry: RegistryInMemory, at: int = -1, after: bool = False) -> None:
        self.registry, self.at, self.after = registry, at, after
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.dead = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self.dead:
                raise Crash
            self.calls.append((name, args))
            is_last = len(self.calls) - 1 == self.at
            self.dead = is_last
            if is_last and not self.after:
                raise Crash
            answer = getattr(self.registry, name)(*args, **options)
            if is_last:
                raise Crash
            return answer

        return call


@pytest.fixture(autouse=True)
def _models_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.registry.rollback, "load_version", lambda *_: None)


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Home, Home]:
    """Two homes that share a registry."""
    return Home(tmp_path / "one"), Home(tmp_path / "other")


def promote(registry: Any, home: Home, before: str | None) -> str:
    number: str = registry.create_model_version(MODEL).version
    with registry_lock(registry, home, MODEL) as lease:
        move_alias(lease, number, before, "better")
    return number


def shared(home: Home, versions: int = 3) -> RegistryInMemory:
    """A registry in which `home` promoted each version over the version before it."""
    registry, last = RegistryInMemory(), None
    registry.create_registered_model(MODEL)
    for _ in range(versions):
        last = promote(registry, home, last)
    return registry


def state(registry: RegistryInMemory, home: Home) -> Any:
    """Aliases and tags, and the decisions on record; without turns, which depend on the number of processes."""
    model = registry.models[MODEL]
    tags = {
        number: {name: text for name, text in tags.items() if name != TURN_TAG}
        for number, tags in model.versions.items()
    }
    decisions = [
        (decision.action, decision.before, decision.to, decision.why)
        for decision in read_decisions(home, MODEL).undamaged()
    ]
    return dict(model.aliases), tags, decisions


def rollback_of_another_home(tmp_path: Path, at: int = -1, after: bool = False) -> tuple[Any, list[Any]]:
    """The state after a rollback by a home that did not promote, interrupted at call `at` and repeated; its calls."""
    folder = tmp_path / f"{at}-{after}"
    registry, home = shared(Home(folder / "one")), Home(folder / "other")
    client = Cut(registry, at, after)
    try:
        assert roll_back(client, home, MODEL, "bad") == ("3", "2")  # type: ignore[arg-type]
    except Crash:
        assert roll_back(registry, home, MODEL, "bad") == ("3", "2")  # type: ignore[arg-type]
    return state(registry, home), client.calls


def test_a_rollback_interrupted_at_any_call_is_finished_by_the_same_command(tmp_path: Path) -> None:
    """Also in a home that did not promote the champion, so that the home has no record of the promotion."""
    wanted, calls = rollback_of_another_home(tmp_path)
    assert wanted[0] == {CHAMPION: 2, PREVIOUS: 3}
    assert wanted[1] == {1: {}, 2: {}, 3: {ROLLED_BACK_TAG: "bad"}}
    assert wanted[2] == [("rollback", "3", "2", "bad")]
    removal = calls.index(("delete_model_version_tag", (MODEL, "3", ROLLBACK_TAG)))  # the last step
    for at in range(removal + 1):
        assert rollback_of_another_home(tmp_path, at)[0] == wanted, f"a crash before {calls[at]}"
    for at in range(removal):
        assert rollback_of_another_home(tmp_path, at, after=True)[0] == wanted, f"a crash after {calls[at]}"


def test_after_its_last_step_an_interrupted_rollback_is_done(tmp_path: Path) -> None:
    wanted, calls = rollback_of_another_home(tmp_path)
    removal = calls.index(("delete_model_version_tag", (MODEL, "3", ROLLBACK_TAG)))
    registry, home = shared(Home(tmp_path / "one")), Home(tmp_path / "other")
    with pytest.raises(Crash):
        roll_back(Cut(registry, removal, after=True), home, MODEL, "bad")  # type: ignore[arg-type]
    assert state(registry, home) == wanted


def interrupted(registry: RegistryInMemory, home: Home, call: str, *args: str) -> None:
    """Begin a rollback in `home`, which crashes after this call."""
    probe = Cut(registry.copy())
    roll_back(probe, Home(home.root.with_name("probe")), MODEL, "probe")  # type: ignore[arg-type]
    at = next(n for n, (name, given) in enumerate(probe.calls) if (name, given[: len(args)]) == (call, args))
    with pytest.raises(Crash):
        roll_back(Cut(registry, at, after=True), home, MODEL, "bad")  # type: ignore[arg-type]


def mark(registry: RegistryInMemory, home: Home, call: str, *args: str) -> None:
    interrupted(registry, home, call, *args)
    assert any(ROLLBACK_TAG in tags for tags in registry.models[MODEL].versions.values())


@pytest.mark.extended
def test_a_rollback_that_moved_nothing_is_not_finished_after_a_promotion(homes: tuple[Home, Home]) -> None:
    """The rollback of version 3 ended before the alias moved; another home promoted version 4 over version 3."""
    home, other = homes
    registry = shared(home)
    mark(registry, home, "set_model_version_tag", MODEL, "3", ROLLBACK_TAG)
    assert promote(registry, other, "3") == "4"
    assert unfinished_rollback(registry, home, MODEL) is None  # type: ignore[arg-type]
    with pytest.raises(
        SettingError, match=r"version 3, the champion before version 4, was rolled back \(bad\)"
    ):
        roll_back(registry, home, MODEL, "bad, too")  # type: ignore[arg-type]
    assert roll_back(registry, home, MODEL, "bad, too", "3") == ("4", "3")  # type: ignore[arg-type]
    assert registry.models[MODEL].versions[4][ROLLED_BACK_TAG] == "bad, too"  # 4 is newer: nothing is undone
    assert registry.models[MODEL].aliases == {CHAMPION: 3, PREVIOUS: 4}
    assert not any(ROLLBACK_TAG in tags for tags in registry.models[MODEL].versions.values())


@pytest.mark.extended
def test_a_rollback_is_not_finished_when_its_target_became_champion_again_since(
    homes: tuple[Home, Home],
) -> None:
    """The rollback of version 3 to 2 was interrupted; others promoted 4, and rolled back to 2 in a later turn."""
    home, other = homes
    registry = shared(home)
    mark(registry, home, "set_registered_model_alias", MODEL, CHAMPION)
    assert promote(registry, other, "2") == "4"
    assert roll_back(registry, other, MODEL, "bad, too") == ("4", "2")  # type: ignore[arg-type]
    assert roll_back(registry, home, MODEL, "was right", "4") == ("2", "4")  # type: ignore[arg-type]
    assert ROLLBACK_TAG not in registry.models[MODEL].versions[3]


@pytest.mark.extended
def test_a_registration_finishes_a_rollback_or_drops_its_stale_mark(homes: tuple[Home, Home]) -> None:
    home, other = homes
    registry = shared(home)
    mark(registry, other, "set_registered_model_alias", MODEL, CHAMPION)
    with registry_lock(registry, other, MODEL) as lease:  # type: ignore[arg-type]
        assert finish_rollback(lease) == ("3", "2")
        assert finish_rollback(lease) is None
    assert registry.models[MODEL].aliases == {CHAMPION: 2, PREVIOUS: 3}
    assert promote(registry, home, "2") == "4"
    mark(registry, other, "set_model_version_tag", MODEL, "4", ROLLBACK_TAG)
    promote(registry, home, "4")
    with registry_lock(registry, other, MODEL) as lease:  # type: ignore[arg-type]
        assert finish_rollback(lease) is None
    assert not any(ROLLBACK_TAG in tags for tags in registry.models[MODEL].versions.values())


def test_a_mark_of_an_earlier_version_of_evergreen_names_no_target(homes: tuple[Home, Home]) -> None:
    """Such a mark is the home's name alone; the home's own record says which version the rollback left."""
    home, _ = homes
    registry = shared(home)
    registry.set_model_version_tag(MODEL, "3", ROLLED_BACK_TAG, "bad")
    registry.set_model_version_tag(MODEL, "3", ROLLBACK_TAG, home.identity)
    assert unfinished_rollback(registry, home, MODEL) is None  # type: ignore[arg-type]
    registry.set_registered_model_alias(MODEL, CHAMPION, "2")
    assert roll_back(registry, home, MODEL, "once more") == ("3", "2")  # type: ignore[arg-type]
    assert registry.models[MODEL].aliases == {CHAMPION: 2, PREVIOUS: 3}
    assert state(registry, home)[2][-1] == ("rollback", "3", "2", "bad")
    assert ROLLBACK_TAG not in registry.models[MODEL].versions[3]


def test_a_rollback_whose_mark_stayed_is_done_also_for_a_registration(
    homes: tuple[Home, Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command said that the rollback is done, so the home's record says that the mark has no meaning."""
    home, other = homes
    registry = shared(home)

    def away(*_: Any) -> None:
        raise MlflowException("the connection was refused")

    with monkeypatch.context() as patch:
        patch.setattr(registry, "delete_model_version_tag", away)
        assert roll_back(registry, other, MODEL, "bad") == ("3", "2")  # type: ignore[arg-type]
    assert ROLLBACK_TAG in registry.models[MODEL].versions[3]
    assert unfinished_rollback(registry, other, MODEL) is None  # type: ignore[arg-type]
    assert roll_back(registry, other, MODEL, "was right", "3") == ("2", "3")  # type: ignore[arg-type]
    assert not any(ROLLBACK_TAG in tags for tags in registry.models[MODEL].versions.values())
