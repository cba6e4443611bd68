"""One writer of a registered model at a time, in whatever home and on whatever machine it runs.

In: a registered model of an MLflow store that several homes may share. Out: a :class:`Lease`, which every function
that writes to the registry asks for. Fails with TransientError when others keep the lock for too long.

MLflow has neither locks nor compare-and-set. What it has is enough for mutual exclusion: a tag that was written is
seen by every later read, and all tags of a model are read at once. A contender writes a claim, a tag under a random
name that no one else uses, reads all claims, and holds the lock when the claim is alone. Of two contenders that see
each other, the one with the larger name withdraws (the one-bit algorithm: L. Lamport, "The Mutual Exclusion Problem:
Part II", Journal of the ACM 33 (1986) 327-348). As no two claims share a name, ending a claim can't end another one.

A claim is a lease: its holder changes another tag every few seconds. A waiter that sees neither tag change for the
length of the lease, by the waiter's own monotonic clock, ends the claim. No two clocks are compared. A holder asks
before each write whether its claim still stands (:meth:`Lease.check`).

An ended claim stays as the model's one lock tag and has the number of its turn, so turns only grow. A version that
becomes champion is tagged with the turn: `evergreen verify` tells from it when a process that had lost the lock moved
the alias nevertheless. That takes a process that stands still for a whole lease between the check and the write.
"""

import json
import logging
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock, Timeout

from training.errors import TransientError
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.registry")

LOCK_TAG, _BEAT = (
    "evergreen.lock.",
    ".beat",
)  # evergreen.lock.TOKEN is a claim, evergreen.lock.TOKEN.beat its beat
LEASE_S = 60.0
_BEAT_S = 10.0  # six beats may fail before the lease is over
_WAIT_S = 600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


class LockLostError(TransientError):
    """The lease was over before the work was done: another home may have changed the registry."""


class Claim(NamedTuple):
    """A contender's tag, with its beat. `turn` is None until the claim is ended."""

    holder: str
    home: str
    host: str
    turn: int | None
    beat: str
    pid: int | None = None


@dataclass(frozen=True)
class Lease:
    """The right to change `model`. `turn` is larger than that of every holder before."""

    client: "MlflowClient"
    home: Home
    model: str
    turn: int
    token: str

    def check(self) -> None:
        """To be called right before each write. Raises :class:`LockLostError` when the claim was ended."""
        own = read_claims(self.client, self.model).get(self.token)
        if own is None or own.turn is not None:
            raise LockLostError(
                f"model {self.model}: this process stood still for over {LEASE_S:g} s and lost the registry lock, so "
                "it writes nothing more. Run the same command again."
            )


@contextmanager
def registry_lock(client: "MlflowClient", home: Home, model: str) -> Iterator[Lease]:
    """Hold the lock of the registered model `model`, which must exist.

    The processes of one home wait for each other at a file, which costs less and dies with its holder. Raises
    :class:`TransientError` when other processes hold the lock for over ten minutes, and :class:`LockLostError` when a
    call of the block failed after the lease was lost.
    """
    from mlflow.exceptions import MlflowException

    with _file_lock(home, model):
        lease = _Contest(client, home, model).win()
        try:
            with _kept_beating(lease):
                yield lease
        except MlflowException:
            lease.check()  # after a lost lease, what another home did is the reason
            raise
        finally:
            _release(lease)


def read_claims(client: "MlflowClient", model: str) -> dict[str, Claim]:
    """:func:`claims_in` the model's tags of this moment."""
    return claims_in(client.get_registered_model(model).tags)


@contextmanager
def _file_lock(home: Home, model: str) -> Iterator[None]:
    home.locks.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(home.locks / f"registry-{model}.lock", timeout=_WAIT_S):
            yield
    except Timeout as error:
        raise TransientError(
            f"model {model}: another process of this home is registering for over {_WAIT_S:g} s. Run the same "
            "command again."
        ) from error


@dataclass
class _Contest:
    """One process's way to the lock. The caller holds the home's file lock."""

    client: "MlflowClient"
    home: Home
    model: str
    token: str = ""
    last_turn: int = 0
    took_over: bool = False
    watched: dict[str, tuple[Claim, float]] = field(default_factory=dict)
    pause_s: float = _FIRST_PAUSE_S
    began: float = field(default_factory=lambda: time.monotonic())

    def win(self) -> Lease:
        while True:
            self.token = _new_token()
            self.client.set_registered_model_tag(self.model, LOCK_TAG + self.token, self._claim())
            try:
                if self._alone():
                    # The holder whose claim was ended may have had the very turn that its claim was ended with.
                    turn = self.last_turn + 1 + self.took_over
                    return Lease(self.client, self.home, self.model, turn, self.token)
            except BaseException:
                with suppress(Exception):  # a claim that stays is ended by the next contender
                    self._withdraw()
                raise
            self._withdraw()
            while rivals := self._standing():
                self._pause(rivals)

    def _claim(self) -> str:
        return json.dumps({"home": self.home.identity, "host": socket.gethostname(), "pid": os.getpid()})

    def _alone(self) -> bool:
        """Wait until no other claim stands. False when this one has to give way, or was ended by a waiter."""
        while True:
            rivals = self._standing()
            if rivals.pop(self.token, None) is None:
                return False
            if not rivals or min(rivals) < self.token:
                return not rivals
            self._pause(rivals)

    def _standing(self) -> dict[str, Claim]:
        """Claims that stand, read again after each time that abandoned ones were ended."""
        while True:
            claims = read_claims(self.client, self.model)
            self.last_turn = max((claim.turn or 0 for claim in claims.values()), default=0)
            standing = {token: claim for token, claim in claims.items() if claim.turn is None}
            abandoned = [token for token, claim in standing.items() if self._is_abandoned(token, claim)]
            if not abandoned:
                return standing
            for token in abandoned:
                log.warning("model %s: %s left the registry locked", self.model, standing[token].holder)
                _end(self.client, self.model, token, self.last_turn + 1)
            self.took_over = True

    def _is_abandoned(self, token: str, claim: Claim) -> bool:
        """Whether a claim did not change for a whole lease, or its process is known to be gone."""
        if token == self.token:
            return False
        if (claim.home, claim.host) == (self.home.identity, socket.gethostname()):
            return True  # its process held the file lock that is ours now
        now = time.monotonic()
        seen, since = self.watched.setdefault(token, (claim, now))
        if seen != claim:
            self.watched[token] = claim, now
        return seen == claim and now - since >= LEASE_S

    def _withdraw(self) -> None:
        self.client.delete_registered_model_tag(self.model, LOCK_TAG + self.token)

    def _pause(self, rivals: dict[str, Claim]) -> None:
        if time.monotonic() - self.began > _WAIT_S:
            holders = " and ".join(sorted(claim.holder for claim in rivals.values()))
            raise TransientError(
                f"model {self.model}: {holders} is registering for over {_WAIT_S:g} s. Run the same command again."
            )
        time.sleep(self.pause_s * random.uniform(0.5, 1.0))
        self.pause_s = min(_LONGEST_PAUSE_S, 1.5 * self.pause_s)


def _new_token() -> str:
    return secrets.token_hex(8)


def claims_in(tags: dict[str, str]) -> dict[str, Claim]:
    """The claims among the tags of a registered model by token, ended ones included."""
    tokens = [_token(name) for name in tags if name.startswith(LOCK_TAG) and not name.endswith(_BEAT)]
    return {one: _parsed(tags[LOCK_TAG + one], tags.get(LOCK_TAG + one + _BEAT, "")) for one in tokens}


def _token(tag: str) -> str:
    return tag.removeprefix(LOCK_TAG).removesuffix(_BEAT)


def _parsed(text: str, beat: str) -> Claim:
    """A claim out of its tag. What can't be read stands until it was watched for a whole lease."""
    try:
        fields: dict[str, Any] = json.loads(text)
        home, host = str(fields.get("home", "")), str(fields.get("host", ""))
        turn = fields.get("turn")
        pid = fields.get("pid")
        holder = f"process {pid} on {host}"
        number = pid if isinstance(pid, int) else None
        return Claim(holder, home, host, None if turn is None else int(turn), beat, number)
    except (ValueError, TypeError, AttributeError):
        return Claim("an unknown process", "", "", None, text + beat)


def _end(client: "MlflowClient", model: str, token: str, turn: int) -> None:
    client.set_registered_model_tag(model, LOCK_TAG + token, json.dumps({"turn": turn}))


def _release(lease: Lease) -> None:
    """End the claim, and remove what ended claims before it left. What fails here is left to the next holder."""
    client, model, own = lease.client, lease.model, lease.token
    with suppress(Exception):
        tags: dict[str, str] = client.get_registered_model(model).tags
        standing = {token for token, claim in claims_in(tags).items() if claim.turn is None}
        if own not in standing:
            return  # a waiter ended it, and its turn is on record
        _end(client, model, own, lease.turn)
        for name in tags:
            if name.startswith(LOCK_TAG) and (name == LOCK_TAG + own + _BEAT or _token(name) not in standing):
                client.delete_registered_model_tag(model, name)


@contextmanager
def _kept_beating(lease: Lease) -> Iterator[None]:
    """Change the claim's second tag every few seconds, from a thread, while the block runs."""
    over = threading.Event()

    def beat() -> None:
        count = 0
        while not over.wait(_BEAT_S):
            count += 1
            try:
                lease.client.set_registered_model_tag(lease.model, LOCK_TAG + lease.token + _BEAT, str(count))
            except Exception as error:  # the lease outlasts some; check() says when it did not
                log.debug("model %s: no beat (%s)", lease.model, error)

    thread = threading.Thread(target=beat, name="registry-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
