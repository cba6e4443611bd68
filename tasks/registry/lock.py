"""Distributed lock of a registered model: one writer at a time, across homes and machines.

In: a registered model of an MLflow store that several homes may share. Out: a :class:`Lease`, which every function
that writes to the registry requires. Fails with TransientError when other processes hold the lock for too long.

MLflow has neither locks nor compare-and-set. Two guarantees of MLflow are enough for mutual exclusion: every read
sees all tags written before, and one read returns all tags of a model. A contender writes a claim (a tag with a
random, unique name), reads all claims, and holds the lock when no other claim is active. Of two contenders that see
each other, the contender with the larger name withdraws (the one-bit algorithm: L. Lamport, "The Mutual Exclusion
Problem: Part II", Journal of the ACM 33 (1986) 327-348). Ending one claim never ends another: names are unique.

A claim is a lease, renewed by a heartbeat, also while its process waits for others: the process changes a second tag
every few seconds. A waiter that sees neither tag change for the length of the lease, by the waiter's own monotonic
clock, ends the claim. Clocks of different machines are never compared. A holder checks before each write that its
claim is active (:meth:`Lease.check`).

The claim that ended last stays as the model's only lock tag and records its turn, so turn numbers only increase. A
version that becomes champion is tagged with the turn (a fencing number): this tag shows `evergreen verify` that a
process moved the alias after it had lost the lock. This happens only when a process is suspended for a whole lease
between the check and the write.
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

# evergreen.lock.TOKEN is a claim, evergreen.lock.TOKEN.beat its heartbeat
LOCK_TAG, _BEAT = "evergreen.lock.", ".beat"
LEASE_S = 60.0
_BEAT_S = 10.0  # six heartbeats may fail before the lease expires
_WAIT_S = 600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


class LockLostError(TransientError):
    """The lease ended before the work was done: another home may have changed the registry."""


class Claim(NamedTuple):
    """A contender's tag and heartbeat. `turn` is None while the claim is active, and a number once it is ended."""

    holder: str
    home: str
    host: str
    turn: int | None
    beat: str
    pid: int | None = None


@dataclass(frozen=True)
class Lease:
    """The right to write to `model`. `turn` is larger than the turn of every earlier holder."""

    client: "MlflowClient"
    home: Home
    model: str
    turn: int
    token: str

    def check(self) -> None:
        """Check, right before each write, that the lock is still held; raises :class:`LockLostError` if it is not."""
        own = read_claims(self.client, self.model).get(self.token)
        if own is None or own.turn is not None:
            raise LockLostError(
                f"model {self.model}: this process was paused for over {LEASE_S:g} s and lost the registry lock, so "
                "it writes nothing more. Run the same command again."
            )


@contextmanager
def registry_lock(client: "MlflowClient", home: Home, model: str) -> Iterator[Lease]:
    """Hold the lock of the registered model `model`, which must exist.

    Processes of one home first take a file lock, which is cheaper, and which the operating system frees when its
    holder dies. Raises :class:`TransientError` when other processes hold the lock for over ten minutes, and
    :class:`LockLostError` when a call to MLflow inside the block fails after the lease was lost.
    """
    from mlflow.exceptions import MlflowException

    with _file_lock(home, model):
        contest = _Contest(client, home, model)
        lease: Lease | None = None
        try:
            with _kept_beating(contest):
                lease = contest.win()
                yield lease
        except MlflowException:
            if lease is not None:
                lease.check()  # after a lost lease, another home's changes caused the failure: report the lost lease
            raise
        finally:
            if lease is not None:
                _release(lease)


def read_claims(client: "MlflowClient", model: str) -> dict[str, Claim]:
    """:func:`claims_in` the current tags of the registered model."""
    return claims_in(client.get_registered_model(model).tags)


@contextmanager
def _file_lock(home: Home, model: str) -> Iterator[None]:
    home.locks.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(home.locks / f"registry-{model}.lock", timeout=_WAIT_S):
            yield
    except Timeout as error:
        raise TransientError(
            f"model {model}: another process of this home held the registry lock for over {_WAIT_S:g} s. Run the same "
            "command again."
        ) from error


@dataclass
class _Contest:
    """One process's attempt to get the lock. The caller holds the home's file lock.

    `token` is that of the active claim; empty without a claim.
    """

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
                    # A holder whose claim was ended here, and that had itself taken over the lock, may have turn
                    # last_turn + 1: skip that number.
                    turn = self.last_turn + 1 + self.took_over
                    return Lease(self.client, self.home, self.model, turn, self.token)
            except BaseException:
                with suppress(Exception):  # the next contender ends a claim that stays active
                    self._withdraw()
                raise
            self._withdraw()
            while rivals := self._standing():
                self._pause(rivals)

    def _claim(self) -> str:
        return json.dumps({"home": self.home.identity, "host": socket.gethostname(), "pid": os.getpid()})

    def _alone(self) -> bool:
        """Wait until no other claim is active. False when this claim must withdraw, or was ended by a waiter."""
        while True:
            rivals = self._standing()
            if rivals.pop(self.token, None) is None:
                return False
            if not rivals or min(rivals) < self.token:
                return not rivals
            self._pause(rivals)

    def _standing(self) -> dict[str, Claim]:
        """Active claims. Ends abandoned claims, then reads all claims again."""
        while True:
            claims = read_claims(self.client, self.model)
            self.last_turn = max((claim.turn or 0 for claim in claims.values()), default=0)
            standing = {token: claim for token, claim in claims.items() if claim.turn is None}
            abandoned = [token for token, claim in standing.items() if self._is_abandoned(token, claim)]
            if not abandoned:
                return standing
            for token in abandoned:
                log.warning(
                    "model %s: ended the registry lock that %s left", self.model, standing[token].holder
                )
                _end(self.client, self.model, token, self.last_turn + 1)
            self.took_over = True

    def _is_abandoned(self, token: str, claim: Claim) -> bool:
        """Whether a claim did not change for a whole lease, or its process is known to have ended."""
        if token == self.token:
            return False
        if (claim.home, claim.host) == (self.home.identity, socket.gethostname()):
            return True  # its process held this home's file lock, which this process holds now
        now = time.monotonic()
        seen, since = self.watched.setdefault(token, (claim, now))
        if seen != claim:
            self.watched[token] = claim, now
        return seen == claim and now - since >= LEASE_S

    def _withdraw(self) -> None:
        token, self.token = self.token, ""  # no heartbeat from now on
        self.client.delete_registered_model_tag(self.model, LOCK_TAG + token)

    def _pause(self, rivals: dict[str, Claim]) -> None:
        if time.monotonic() - self.began > _WAIT_S:
            holders = " and ".join(sorted(claim.holder for claim in rivals.values()))
            raise TransientError(
                f"model {self.model}: {holders} held the registry lock for over {_WAIT_S:g} s. Run the same command "
                "again."
            )
        time.sleep(self.pause_s * random.uniform(0.5, 1.0))
        self.pause_s = min(_LONGEST_PAUSE_S, 1.5 * self.pause_s)


def _new_token() -> str:
    return secrets.token_hex(8)


def claims_in(tags: dict[str, str]) -> dict[str, Claim]:
    """Parse the claims among the tags of a registered model, by token; ended claims are included."""
    tokens = [_token(name) for name in tags if name.startswith(LOCK_TAG) and not name.endswith(_BEAT)]
    return {
        token: _parsed(tags[LOCK_TAG + token], tags.get(LOCK_TAG + token + _BEAT, "")) for token in tokens
    }


def _token(tag: str) -> str:
    return tag.removeprefix(LOCK_TAG).removesuffix(_BEAT)


def _parsed(text: str, beat: str) -> Claim:
    """Parse a claim's tag. An unreadable claim counts as active until it has not changed for a whole lease."""
    try:
        fields: dict[str, Any] = json.loads(text)
        home, host = str(fields.get("home", "")), str(fields.get("host", ""))
        turn = fields.get("turn")
        pid = fields.get("pid")
        holder = f"process {pid} on {host}"
        number = pid if isinstance(pid, int) else None
        return Claim(holder, home, host, None if turn is None else int(turn), beat, number)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return Claim("an unknown process", "", "", None, text + beat)


def _end(client: "MlflowClient", model: str, token: str, turn: int) -> None:
    client.set_registered_model_tag(model, LOCK_TAG + token, json.dumps({"turn": turn}))


def _release(lease: Lease) -> None:
    """End the claim, and remove the tags of claims that ended before. The next holder repeats what fails here."""
    client, model, own = lease.client, lease.model, lease.token
    with suppress(Exception):
        tags: dict[str, str] = client.get_registered_model(model).tags
        standing = {token for token, claim in claims_in(tags).items() if claim.turn is None}
        if own not in standing:
            return  # a waiter ended this claim and recorded its turn
        _end(client, model, own, lease.turn)
        for name in tags:
            if name.startswith(LOCK_TAG) and (name == LOCK_TAG + own + _BEAT or _token(name) not in standing):
                client.delete_registered_model_tag(model, name)


@contextmanager
def _kept_beating(contest: _Contest) -> Iterator[None]:
    """Send heartbeats while the block waits for the lock or holds it: a thread changes the claim's second tag.

    A heartbeat that arrives after its claim was withdrawn leaves a tag, which the next holder removes.
    """
    over = threading.Event()

    def beat() -> None:
        count = 0
        while not over.wait(_BEAT_S):
            count += 1
            if not (token := contest.token):
                continue
            try:
                contest.client.set_registered_model_tag(contest.model, LOCK_TAG + token + _BEAT, str(count))
            except Exception as error:  # a few missed heartbeats are harmless; check() reports a lost lease
                log.debug("model %s: heartbeat failed (%s)", contest.model, error)

    thread = threading.Thread(target=beat, name="registry-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
