"""Looks in the model registry: recorded before the alias moves, and continued by any home."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from looks import from_counts, kept_on_disk
from mlflow import MlflowClient

from tasks.gate import judge
from tasks.gate.reign import read_reign
from tasks.registry.aliases import WEIGHTS_TAG
from tasks.registry.lock import Lease, registry_lock
from tasks.registry.reign import (
    LOOK_TAG,
    REIGN_TAG,
    Registry,
    anchor_of,
    is_anchor,
    settle_standing,
    take_looks,
)
from tasks.trackers.mlflow_run import connect
from training.records import Evaluation, Look
from training.settings.schema import GateSettings
from training.storage.paths import Home

JOINT, STRICT = GateSettings(), GateSettings(error_control="strict")
NOT_WORSE = GateSettings(policy="not_worse", margin=0.02)
EQUAL = (900, 40, 40, 20)
BETTER = (900, 70, 10, 20)


class Crash(BaseException):
    """A power cut."""


class Shop(NamedTuple):
    """A registered model whose versions can't be loaded; no test loads them."""

    lease: Lease
    folder: Path

    @property
    def client(self) -> MlflowClient:
        return self.lease.client

    @property
    def model(self) -> str:
        return self.lease.model

    def version(self) -> str:
        made = self.client.create_model_version(self.model, source=self.folder.as_uri())
        number = str(made.version)
        self.client.set_model_version_tag(self.model, number, WEIGHTS_TAG, f"weights {number}")
        return number

    def evaluation(self, champion: str, counts: Any = EQUAL, first_row: int = 0) -> Evaluation:
        made = from_counts(counts).model_copy(update={"champion_version": champion})
        digests = np.arange(first_row, first_row + made.rows, dtype=np.uint64)
        return kept_on_disk(made, self.folder / f"{champion}-{counts}-{first_row}.parquet", digests)

    def looks(
        self, candidate: str, evaluation: Evaluation, settings: GateSettings = JOINT
    ) -> tuple[Look, ...]:
        weights = f"weights {candidate}"
        return take_looks(self.lease, candidate, weights, evaluation, settings)

    def promote(self, candidate: str, evaluation: Evaluation, settings: GateSettings) -> bool:
        verdict = judge(evaluation, settings, self.looks(candidate, evaluation, settings))
        settle_standing(self.lease, candidate, evaluation, verdict)
        return verdict.promote

    def state(self, number: str, question: str = "better") -> Any:
        return read_reign(self.tags(number)[f"{REIGN_TAG}.{question}"])

    def tags(self, number: str) -> dict[str, str]:
        tags: dict[str, str] = self.client.get_model_version(self.model, number).tags
        return tags


@pytest.fixture(scope="module")
def home_and_client(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, MlflowClient]:
    home = Home(tmp_path_factory.mktemp("home"))
    return home, connect(None, home)


@pytest.fixture
def shop(
    home_and_client: tuple[Home, MlflowClient], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Shop]:
    home, client = home_and_client
    model = f"model-{abs(hash(request.node.nodeid))}"
    client.create_registered_model(model)
    with registry_lock(client, home, model) as lease:
        yield Shop(lease, tmp_path)


def test_a_pair_that_is_judged_again_spends_nothing(shop: Shop) -> None:
    champion, candidate = shop.version(), shop.version()
    evaluation = shop.evaluation(champion)
    (look,) = shop.looks(candidate, evaluation)
    spent = shop.tags(champion)[f"{REIGN_TAG}.better"]
    assert shop.looks(candidate, evaluation) == (look,)
    assert shop.tags(champion)[f"{REIGN_TAG}.better"] == spent
    assert (shop.state(champion).looks, look.number, look.passed) == (1, 1, False)


@pytest.mark.parametrize("settings", [JOINT, STRICT], ids=["joint", "strict"])
def test_the_same_weights_under_another_number_get_no_second_look(shop: Shop, settings: GateSettings) -> None:
    champion, candidate, forced = shop.version(), shop.version(), shop.version()
    weights = shop.tags(candidate)[WEIGHTS_TAG]
    shop.client.set_model_version_tag(shop.model, forced, WEIGHTS_TAG, weights)
    evaluation = shop.evaluation(champion)
    (look,) = shop.looks(candidate, evaluation, settings)
    spent = shop.tags(champion)[f"{REIGN_TAG}.better"]
    assert take_looks(shop.lease, forced, weights, evaluation, settings) == (look,)
    assert shop.tags(champion)[f"{REIGN_TAG}.better"] == spent
    assert shop.tags(forced)[f"{LOOK_TAG}.better.{champion}"] == look.model_dump_json()


@pytest.mark.parametrize("settings", [JOINT, STRICT], ids=["joint", "strict"])
def test_a_repeated_look_spends_nothing_after_its_key_was_forgotten(
    shop: Shop, settings: GateSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.gate.reign._MOST_KEYS", 2)
    champion, *candidates = (shop.version() for _ in range(5))
    evaluation = shop.evaluation(champion)
    looks = [shop.looks(candidate, evaluation, settings) for candidate in candidates]
    spent = shop.tags(champion)[f"{REIGN_TAG}.better"]
    assert looks[0][0].key not in shop.state(champion).keys
    again = settings.model_copy(update={"max_class_drop": 0.5})
    assert shop.looks(candidates[0], evaluation, again) == looks[0]
    assert shop.tags(champion)[f"{REIGN_TAG}.better"] == spent


def test_the_level_of_joint_looks_is_recorded(shop: Shop) -> None:
    champion, candidate = shop.version(), shop.version()
    (look,) = shop.looks(candidate, shop.evaluation(champion))
    assert shop.state(champion).joint_spent == look.spent > 0


def test_a_damaged_state_of_which_looks_are_lost_is_rebuilt_with_what_the_others_say(shop: Shop) -> None:
    champion, *candidates = (shop.version() for _ in range(5))
    for candidate in candidates[:3]:
        shop.looks(candidate, shop.evaluation(champion), STRICT)
    whole, tag = shop.state(champion), f"{REIGN_TAG}.better"
    shop.client.set_model_version_tag(shop.model, champion, tag, "damaged")
    for candidate in candidates[:2]:
        shop.client.delete_model_version(shop.model, candidate)
    (look,) = shop.looks(candidates[3], shop.evaluation(champion), STRICT)
    assert look.number == 4
    assert look.spent == pytest.approx(whole.strict_spent + look.level)


def test_other_candidates_rows_and_settings_are_separate_looks(shop: Shop) -> None:
    champion, candidate, other = shop.version(), shop.version(), shop.version()
    first = shop.looks(candidate, shop.evaluation(champion))
    second = shop.looks(other, shop.evaluation(champion))
    fresh = shop.looks(candidate, shop.evaluation(champion, first_row=5000))
    wider = shop.looks(candidate, shop.evaluation(champion, first_row=5000), GateSettings(confidence=0.9))
    assert [look.number for looks in (first, second, fresh, wider) for look in looks] == [1, 2, 3, 4]


@pytest.mark.parametrize("write", [1, 2])
@pytest.mark.parametrize("settings", [JOINT, STRICT], ids=["joint", "strict"])
def test_a_crash_between_judging_and_recording_spends_one_look(
    shop: Shop, write: int, settings: GateSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    champion, candidate = shop.version(), shop.version()
    evaluation, written, original = shop.evaluation(champion), [], MlflowClient.set_model_version_tag

    def crashing(*args: Any, **options: Any) -> None:
        original(*args, **options)
        written.append(args)
        if len(written) == write:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_model_version_tag", crashing)
        with pytest.raises(Crash):
            shop.looks(candidate, evaluation, settings)
    (look,) = shop.looks(candidate, evaluation, settings)
    assert (look.number, shop.state(champion).looks) == (1, 1)
    assert shop.state(champion).strict_spent == (look.level if settings is STRICT else 0)


def test_a_new_champion_begins_a_reign_and_a_rollback_continues_one(shop: Shop) -> None:
    first, second, candidate = shop.version(), shop.version(), shop.version()
    numbers = [
        shop.looks(candidate, shop.evaluation(champion, first_row=row))[0].number
        for champion, row in ((first, 0), (first, 1), (second, 0), (first, 2))
    ]
    assert numbers == [1, 2, 1, 3]


def test_a_damaged_state_is_rebuilt_from_the_candidates_looks(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    champion, *candidates = (shop.version() for _ in range(4))
    for candidate in candidates[:2]:
        shop.looks(candidate, shop.evaluation(champion))
    whole, tag = shop.state(champion), f"{REIGN_TAG}.better"
    shop.client.set_model_version_tag(shop.model, champion, tag, whole.text()[:-20])
    with caplog.at_level(logging.WARNING):
        (look,) = shop.looks(candidates[2], shop.evaluation(champion))
    assert look.number == 3
    assert "is damaged" in caplog.text
    assert shop.state(champion).crossed.sum() >= whole.crossed.sum() > 0


def test_a_state_that_another_home_wrote_meanwhile_is_merged(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    champion, candidate, other = shop.version(), shop.version(), shop.version()
    evaluation = shop.evaluation(champion)
    (look,) = shop.looks(other, evaluation)
    theirs = shop.tags(champion)[f"{REIGN_TAG}.better"]
    shop.client.delete_model_version_tag(shop.model, champion, f"{REIGN_TAG}.better")
    original, overwritten = Registry._write, []

    def overtaken(self: Registry, *args: Any) -> None:
        original(self, *args)
        if not overwritten:
            overwritten.append(args)
            self.client.set_model_version_tag(shop.model, champion, f"{REIGN_TAG}.better", theirs)

    monkeypatch.setattr(Registry, "_write", overtaken)
    (mine,) = shop.looks(candidate, evaluation)
    assert set(shop.state(champion).keys) == {look.key, mine.key}


def test_a_candidate_below_the_floor_spends_nothing(shop: Shop) -> None:
    champion, candidate = shop.version(), shop.version()
    assert shop.looks(candidate, shop.evaluation(champion), GateSettings(floor=0.999)) == ()
    assert not any(
        tag.startswith((REIGN_TAG, LOOK_TAG)) for tag in shop.tags(champion) | shop.tags(candidate)
    )


# --- the anchor of policy "not_worse"


def test_a_candidate_becomes_the_anchor_only_when_it_is_better(shop: Shop) -> None:
    first, second, third, fourth, fifth = (shop.version() for _ in range(5))
    assert anchor_of(shop.client, shop.model, first) is None
    assert shop.promote(second, shop.evaluation(first, (980, 0, 0, 20)), NOT_WORSE)
    assert anchor_of(shop.client, shop.model, second) == first
    assert shop.promote(third, shop.evaluation(first, BETTER), NOT_WORSE)
    assert anchor_of(shop.client, shop.model, third) is None
    assert shop.promote(fourth, shop.evaluation(third, (980, 0, 0, 20)), NOT_WORSE)
    assert anchor_of(shop.client, shop.model, fourth) == third
    # As under policy "better": compared with the champion only.
    assert shop.promote(fifth, shop.evaluation(fourth, BETTER), JOINT)
    assert anchor_of(shop.client, shop.model, fifth) is None


def test_the_anchor_of_the_champion_and_of_its_predecessor_is_in_service(shop: Shop) -> None:
    first, second, third = (shop.version() for _ in range(3))
    assert shop.promote(second, shop.evaluation(first, (980, 0, 0, 20)), NOT_WORSE)
    for alias, expected in (("champion", True), ("previous", True), ("challenger", False)):
        shop.client.set_registered_model_alias(shop.model, alias, second)
        assert is_anchor(shop.client, shop.model, first) is expected
        assert not is_anchor(shop.client, shop.model, third)
        shop.client.delete_registered_model_alias(shop.model, alias)


def test_an_anchor_that_is_gone_is_replaced_by_the_champion(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = shop.version(), shop.version()
    assert shop.promote(second, shop.evaluation(first, (980, 0, 0, 20)), NOT_WORSE)
    shop.client.delete_model_version(shop.model, first)
    with caplog.at_level(logging.WARNING):
        assert anchor_of(shop.client, shop.model, second) is None
    assert f"the anchor, version {first}, is not in the registry any more" in caplog.text


def test_selection_bias_is_recorded_and_shown_with_the_champion_on_the_same_rows(shop: Shop) -> None:
    first, second, third = (shop.version() for _ in range(3))
    assert shop.promote(second, shop.evaluation(first, BETTER), JOINT)
    (same,) = shop.looks(third, shop.evaluation(second))
    (fresh,) = shop.looks(third, shop.evaluation(second, first_row=5000))
    assert 0 < same.reference_excess < 0.03
    assert fresh.reference_excess == 0
