"""A finished run is reused only while it matches the request and the present store."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tracked import planned

from tasks.comparison import comparison_now
from tasks.evaluate import evaluate
from tasks.register import register
from tasks.registry.aliases import CHAMPION, ROLLED_BACK_TAG, WEIGHTS_TAG, was_rolled_back
from tasks.reuse import find_release
from tasks.trackers.mlflow_run import connect
from training.plan import RunPlan
from training.records import NOT_AGAIN, Release, TrainedModel
from training.storage.files import write_text
from training.storage.paths import Home
from training.supervision.launch import launch, make_job


class Done(NamedTuple):
    plan: RunPlan
    trained: TrainedModel
    release: Release

    def asked_for(self, section: str, **values: Any) -> RunPlan:
        """The same run with other settings that are not part of the run key."""
        settings = self.plan.settings
        changed = getattr(settings, section).model_copy(update=values)
        return self.plan.model_copy(update={"settings": settings.model_copy(update={section: changed})})


def finished(home: Home, **gate: Any) -> Done:
    plan, version = planned(home, gate=gate)
    trained = launch(make_job(plan.run_key, plan.paths, plan.recipe, plan.settings, version))
    release = register.fn(plan, version, trained, evaluate.fn(plan, version, trained))
    write_text(plan.paths.release, release.model_dump_json())
    return Done(plan, trained, release)


@pytest.fixture(scope="module")
def kept_home(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return finished(Home(tmp_path_factory.mktemp("kept")), floor=1.0)


@pytest.fixture(scope="module")
def promoted_home(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return finished(Home(tmp_path_factory.mktemp("promoted")))


@pytest.fixture
def promoted(promoted_home: Done) -> Iterator[Done]:
    written = promoted_home.plan.paths.release.read_bytes()
    yield promoted_home
    promoted_home.plan.paths.release.write_bytes(written)


@pytest.mark.extended
def test_the_same_question_has_the_same_answer(promoted: Done, kept_home: Done) -> None:
    for done in (promoted, kept_home):
        release = find_release(done.plan)
        assert release is not None
        assert release == done.release.model_copy(update={"reused": True})


@pytest.mark.parametrize(
    "changed", [{"model": "another"}, {"experiment": "another"}], ids=["model", "experiment"]
)
def test_another_name_is_another_registration(promoted: Done, changed: dict[str, str]) -> None:
    assert find_release(promoted.asked_for("tracking", **changed)) is None


def test_another_store_is_another_registration(promoted: Done, tmp_path: Path) -> None:
    assert find_release(promoted.asked_for("tracking", uri=f"sqlite:///{tmp_path}/other.db")) is None


def test_a_release_that_can_not_be_read_is_made_again(promoted: Done) -> None:
    promoted.plan.paths.release.write_text("{}")
    assert find_release(promoted.plan) is None


def test_weights_that_were_refused_after_a_rollback_are_not_called_promoted(promoted: Done) -> None:
    client = connect(None, Home(Path(promoted.plan.home)))
    client.delete_registered_model_alias(promoted.plan.model, CHAMPION)
    refused = promoted.release.model_copy(update={"alias": "none"})
    write_text(promoted.plan.paths.release, refused.model_dump_json())
    try:
        release = find_release(promoted.plan)
        assert release is not None
        assert release.verdict.summary == f"Not promoted: {NOT_AGAIN}"
    finally:
        client.set_registered_model_alias(promoted.plan.model, CHAMPION, promoted.release.version)


def test_a_kept_candidate_is_compared_again_once_the_champion_is_another(kept_home: Done) -> None:
    client = connect(None, Home(Path(kept_home.plan.home)))
    client.set_registered_model_alias(kept_home.plan.model, CHAMPION, kept_home.release.version)
    try:
        assert find_release(kept_home.plan) is not None  # the release's version is the champion now
        source = client.get_model_version(kept_home.plan.model, kept_home.release.version)
        other = client.create_model_version(kept_home.plan.model, source.source)
        client.set_registered_model_alias(kept_home.plan.model, CHAMPION, other.version)
        assert find_release(kept_home.plan) is None
    finally:
        client.delete_registered_model_alias(kept_home.plan.model, CHAMPION)


def test_a_comparison_is_known_by_store_model_weights_and_confidence(kept_home: Done) -> None:
    plan, trained = kept_home.plan, kept_home.trained
    version = plan.find_dataset()
    assert version is not None
    client = connect(None, Home(Path(plan.home)))
    name = "judged"
    client.create_registered_model(name)
    source = client.get_model_version(plan.model, kept_home.release.version).source
    asked = kept_home.asked_for("tracking", model=name)
    folders = [comparison_now(client, asked, version, trained).folder(asked)]
    for weights in ("a" * 64, "b" * 64):
        made = client.create_model_version(name, source, tags={WEIGHTS_TAG: weights})
        client.set_registered_model_alias(name, CHAMPION, made.version)
        folders.append(comparison_now(client, asked, version, trained).folder(asked))
        client.set_model_version_tag(name, made.version, WEIGHTS_TAG, "c" * 64)  # as from a restored backup
        folders.append(comparison_now(client, asked, version, trained).folder(asked))
    stricter = asked.settings.gate.model_copy(update={"confidence": 0.99})
    strict = asked.model_copy(update={"settings": asked.settings.model_copy(update={"gate": stricter})})
    folders.append(comparison_now(client, strict, version, trained).folder(strict))
    assert len(set(folders)) == len(folders)


def test_weights_that_were_rolled_back_are_known_under_any_number(promoted: Done) -> None:
    client = connect(None, Home(Path(promoted.plan.home)))
    model, release = promoted.plan.model, promoted.release
    assert not was_rolled_back(client, model, release.weights_digest)
    source = client.get_model_version(model, release.version).source
    again = client.create_model_version(model, source, tags={WEIGHTS_TAG: release.weights_digest})
    client.set_model_version_tag(model, again.version, ROLLED_BACK_TAG, "worse in the field")
    assert was_rolled_back(client, model, release.weights_digest)
    assert not was_rolled_back(client, model, "0" * 64)


def test_a_home_is_known_by_a_name_that_moves_with_it(tmp_path: Path) -> None:
    here, other = Home(tmp_path / "here"), Home(tmp_path / "other")
    known = here.identity
    assert known == Home(here.root).identity != other.identity
    shutil.move(here.root, tmp_path / "there")
    assert Home(tmp_path / "there").identity == known


def test_a_champion_whose_alias_was_removed_by_hand_is_warned_of(
    promoted: Done, caplog: pytest.LogCaptureFixture
) -> None:
    client, name, version = (
        connect(None, Home(Path(promoted.plan.home))),
        promoted.plan.model,
        promoted.release.version,
    )
    client.delete_registered_model_alias(name, CHAMPION)
    try:
        release = find_release(promoted.plan)
        assert release is not None
        assert "has no version with the alias champion" in caplog.text
    finally:
        client.set_registered_model_alias(name, CHAMPION, version)
