"""The registry lock: one home at a time may write to a registered model, and none after its lease has expired."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mlflow import MlflowClient

import tasks.registry.lock
from tasks.registry.lock import LOCK_TAG, LockLostError, read_claims, registry_lock
from tasks.trackers.mlflow_store import connect
from training.errors import TransientError
from training.storage.paths import Home

MODEL = "shared"
_PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("store"))


@pytest.fixture
def client(store: Home) -> Iterator[MlflowClient]:
    made = connect(None, store)
    made.create_registered_model(MODEL)
    yield made
    made.delete_registered_model(MODEL)


@pytest.fixture
def homes(tmp_path: Path) -> list[Home]:
    return [Home(tmp_path / name) for name in ("one", "two")]


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.registry.lock, "LEASE_S", 0.3)


def lock_tags(client: MlflowClient) -> dict[str, str]:
    tags: dict[str, str] = client.get_registered_model(MODEL).tags
    return {name: text for name, text in tags.items() if name.startswith(LOCK_TAG)}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_home_at_a_time_holds_the_lock_and_turns_grow(client: MlflowClient, homes: list[Home]) -> None:
    inside: list[int] = []
    turns: list[int] = []

    def enter(number: int) -> None:
        with registry_lock(client, homes[number % 2], MODEL) as lease:
            inside.append(number)
            lease.check()
            assert inside == [number]
            turns.append(lease.turn)
            inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enter, range(12)))
    assert turns == list(range(1, 13))


def test_one_tag_is_left_however_often_the_lock_was_held(client: MlflowClient, homes: list[Home]) -> None:
    for number in range(3):
        with registry_lock(client, homes[number % 2], MODEL):
            pass
    assert list(lock_tags(client).values()) == ['{"turn": 3}']
    assert [model.name for model in client.search_registered_models()] == [MODEL]


def test_the_lock_is_released_after_an_error(client: MlflowClient, homes: list[Home]) -> None:
    with pytest.raises(ZeroDivisionError), registry_lock(client, homes[0], MODEL):
        _ = 1 / 0
    with registry_lock(client, homes[1], MODEL) as lease:
        assert lease.turn == 2


def test_a_claim_that_does_not_change_for_a_lease_is_ended(
    client: MlflowClient, homes: list[Home], short_lease: None
) -> None:
    """The first holder sends no heartbeat; it notices the lost lock before it writes, and keeps the other's claim."""
    with registry_lock(client, homes[0], MODEL) as first:
        with registry_lock(client, homes[1], MODEL) as second:
            assert second.turn > first.turn
            second.check()
            with pytest.raises(LockLostError, match="was paused"):
                first.check()
        with registry_lock(client, homes[1], MODEL) as third:
            assert third.turn > second.turn
    with registry_lock(client, homes[0], MODEL) as fourth:
        assert fourth.turn > third.turn
    assert len(lock_tags(client)) == 1


def test_a_holder_with_heartbeats_is_waited_for(
    client: MlflowClient, homes: list[Home], short_lease: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiter gives up before the holder has finished, and withdraws its claim."""
    monkeypatch.setattr(tasks.registry.lock, "LEASE_S", 120.0)
    monkeypatch.setattr(tasks.registry.lock, "_BEAT_S", 0.05)
    with registry_lock(client, homes[0], MODEL) as lease:
        until(lambda: read_claims(client, MODEL)[lease.token].beat > "")
        before = read_claims(client, MODEL)[lease.token].beat
        until(lambda: read_claims(client, MODEL)[lease.token].beat != before)
        monkeypatch.setattr(tasks.registry.lock, "_WAIT_S", 0.5)
        with (
            pytest.raises(
                TransientError, match=f"process {os.getpid()} on .* held the registry lock for over"
            ),
            registry_lock(client, homes[1], MODEL),
        ):
            pass
        assert list(read_claims(client, MODEL)) == [lease.token]
        lease.check()
    assert len(lock_tags(client)) == 1


def test_a_waiter_with_heartbeats_keeps_its_claim_as_long_as_it_waits(
    client: MlflowClient, homes: list[Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim of a second home waits for the holder, and a third home must not take it for abandoned."""
    monkeypatch.setattr(tasks.registry.lock, "LEASE_S", 5.0)
    monkeypatch.setattr(tasks.registry.lock, "_BEAT_S", 0.05)
    tokens = iter(["1", "0", "2"])  # the smaller claim stays while it waits
    monkeypatch.setattr(tasks.registry.lock, "_new_token", lambda: next(tokens))
    turns: list[int] = []

    def wait() -> None:
        with registry_lock(client, homes[1], MODEL) as lease:
            lease.check()
            turns.append(lease.turn)

    with ThreadPoolExecutor(1) as pool:
        with registry_lock(client, homes[0], MODEL):
            waiting = pool.submit(wait)
            until(lambda: "0" in read_claims(client, MODEL) and read_claims(client, MODEL)["0"].beat > "")
            before = read_claims(client, MODEL)["0"].beat
            until(lambda: read_claims(client, MODEL)["0"].beat != before)
        waiting.result(_PATIENCE_S)
    with registry_lock(client, Home(tmp_path / "three"), MODEL) as lease:
        assert turns == [2]
        assert lease.turn == 3
    assert len(lock_tags(client)) == 1


_HOLDER = """
import sys
from pathlib import Path
from tasks.trackers.mlflow_store import connect
from tasks.registry.lock import registry_lock
from training.storage.paths import Home

store, home, model = sys.argv[1:]
with registry_lock(connect(None, Home(Path(store))), Home(Path(home)), model):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.extended
def test_a_home_ends_the_claim_of_its_killed_holder_at_once(
    client: MlflowClient, store: Home, homes: list[Home]
) -> None:
    """The home of the killed process does not wait for the lease (a minute; infinite here); another home does."""
    command = [sys.executable, "-c", _HOLDER, str(store.root), str(homes[0].root), MODEL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
    assert [claim.turn for claim in read_claims(client, MODEL).values()] == [None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks.registry.lock, "LEASE_S", float("inf"))
        with registry_lock(client, homes[0], MODEL) as lease:
            assert lease.turn > 1
    assert len(lock_tags(client)) == 1


def test_an_unreadable_claim_is_waited_for_and_ended(
    client: MlflowClient, homes: list[Home], short_lease: None
) -> None:
    client.set_registered_model_tag(MODEL, f"{LOCK_TAG}0", "no JSON")
    with registry_lock(client, homes[0], MODEL) as lease:
        lease.check()
    assert len(lock_tags(client)) == 1


def test_a_claim_of_a_waiter_is_withdrawn_when_it_gives_up(client: MlflowClient, homes: list[Home]) -> None:
    """As after Ctrl-C: a claim that stays would make others wait until the lease expires."""
    with registry_lock(client, homes[0], MODEL) as lease, pytest.MonkeyPatch.context() as patch:
        started = threading.Event()

        def interrupt(_: float) -> None:
            started.set()
            raise KeyboardInterrupt

        patch.setattr(tasks.registry.lock.time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt), registry_lock(client, homes[1], MODEL):
            pass
        assert started.is_set()
        assert list(read_claims(client, MODEL)) == [lease.token]
