"""Model checker for programs that share a registry: all orders of their calls, with crashes and expired leases.

Each actor is a real program of Evergreen in a greenlet. The greenlet yields before each registry call, and a
scheduler chooses the next actor, so the exploration is exhaustive and repeatable. The state of a running program
cannot be copied, so every branch is entered by running all programs again from the start. The answers that a program
received determine its next calls, so the registry and all answers so far are the whole state; a known state is not
explored again. Of polls for the lock that follow each other, the last answer alone counts, as for the program.

A crash may happen before any call, which is the same as after the previous call; the program is then started again.
A lease expires when the scheduler advances the clock of a waiter while the holder is stopped. This may happen
anywhere except between a holder's check of the lease and the write that follows at once: the only assumption.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from greenlet import GreenletExit, getcurrent, greenlet
from mlflow.exceptions import MlflowException
from registry_in_memory import Model, RegistryInMemory

from tasks.registry.aliases import TURN_TAG
from tasks.registry.lock import LEASE_S
from tasks.registry.rollback_mark import ROLLBACK_TAG

Program = Callable[[], Any]
WRITES = (
    "create_model_version",
    "delete_model_version",
    "set_registered_model_alias",
    "delete_registered_model_alias",
    "set_model_version_tag",
    "delete_model_version_tag",
)


_WOKEN = "woken"  # in a trace: the program goes on after a sleep


class Choice(NamedTuple):
    """The next event: `step`, `crash`, or `lapse` (expiry) of the leases for which the actor waits."""

    actor: int
    what: str


class Call(NamedTuple):
    name: str
    args: tuple[Any, ...]
    options: dict[str, Any]


class Limits(NamedTuple):
    """Bounds on the crashes, expired leases and preemptions in one order of events; None: any number of preemptions.

    A preemption is a switch to another actor although the previous actor could continue. A small bound is enough to
    find most errors (M. Musuvathi and S. Qadeer, "Iterative Context Bounding", PLDI 2007).
    """

    crashes: int = 0
    lapses: int = 0
    lapses_before_writes: bool = False  # drops the assumption in the module's docstring
    preemptions: int | None = None


@dataclass
class Actor:
    """The program of one home, and the state of its execution."""

    name: str
    program: Program
    execution: "Execution"
    clock: float = 0.0
    tokens: int = 0
    pending: Call | None = None  # None while the program sleeps
    seen: dict[str, str] = field(default_factory=dict)  # the model's tags when the program last read them
    trace: list[str] = field(default_factory=list)
    outcome: Any = None
    over: bool = False
    crashed: bool = False
    checked: bool = False  # the last call may have been the check of the program's lease
    compared_with: str | None = None  # the champion with which the program last compared its candidate
    body: greenlet | None = None

    def start(self) -> None:
        self.crashed, self.over, self.pending = False, False, None
        self.body = greenlet(self._run)
        _ACTORS[self.body] = self
        self.go_on(None)

    def go_on(self, answer: Any) -> None:
        assert self.body is not None
        at = self.body.switch(answer) if self.body else self.body.switch()  # an unstarted greenlet is falsy
        self.over = self.body.dead
        self.pending = at if isinstance(at, Call) else None

    def crash(self) -> None:
        assert self.body is not None
        self.crashed = True
        self.body.throw(GreenletExit)
        assert self.body.dead

    def forget_poll(self) -> None:
        """Drop the last but one answer to a poll for the lock; a contender keeps nothing of it but the clock."""
        if self.trace[-4::2] == [_WOKEN, _WOKEN]:
            del self.trace[-4:-2]

    def stop(self, at: Call | None) -> Any:
        """Yield to the scheduler until the actor is chosen. After a crash the program makes no more calls."""
        assert self.body is not None
        if self.crashed:
            raise GreenletExit
        return self.body.parent.switch(at)

    def _run(self) -> None:
        self.outcome = self.program()


_ACTORS: "WeakKeyDictionary[greenlet, Actor]" = WeakKeyDictionary()


def acting() -> Actor:
    """The actor whose program is running."""
    return _ACTORS[getcurrent()]


class Client:
    """Replaces MLflow's client in a program: each call waits for the scheduler."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            answer = acting().stop(Call(name, args, options))
            if isinstance(answer, MlflowException):
                raise answer
            return answer

        return call


class Time:
    """Replaces the module `time` in the lock: a clock per actor, which only an expired lease advances."""

    def monotonic(self) -> float:
        return acting().clock

    def sleep(self, _: float) -> None:
        acting().stop(None)


def new_token() -> str:
    """A unique name for a claim; an actor's names sort before those of later actors."""
    actor = acting()
    actor.tokens += 1
    return f"{actor.name}{actor.tokens}"


class Move(NamedTuple):
    """A change of the champion alias."""

    actor: int
    before: str
    after: str
    compared_with: str | None
    turn: int  # fencing token of the lock's holder; 0 when the new champion has none
    left: tuple[str, ...]  # tags of the version that was champion before
    mark: str  # mark of a rollback in progress, of the version that becomes champion; empty without a mark


class Execution:
    """One order of events, executed from the start."""

    def __init__(self, registry: RegistryInMemory, programs: list[Program], limits: Limits) -> None:
        self.registry, self.limits = registry.copy(), limits
        self.actors = [Actor("abc"[number], program, self) for number, program in enumerate(programs)]
        self.crashes, self.lapses, self.preemptions, self.last = 0, 0, 0, 0
        self.moves: list[Move] = []
        self.compared: dict[str, list[Any]] = {}  # comparisons that the programs store in their homes
        for actor in self.actors:
            actor.start()

    @property
    def model(self) -> Model:
        return next(iter(self.registry.models.values()))

    def choices(self) -> list[Choice]:
        """Events that are possible next; those of the actor that acted last come first."""
        choices = []
        for number in sorted(range(len(self.actors)), key=lambda number: number != self.last):
            actor = self.actors[number]
            if actor.over:
                continue
            if self._can_step(actor) and self._is_within_limit(number):
                choices.append(Choice(number, "step"))
            if actor.pending is None and self._may_lapse(number):
                choices.append(Choice(number, "lapse"))
            if self.crashes < self.limits.crashes:
                choices.append(Choice(number, "crash"))
        return choices

    def _can_step(self, actor: Actor) -> bool:
        return not actor.over and (actor.pending is not None or self.model.tags != actor.seen)

    def _is_within_limit(self, number: int) -> bool:
        most = self.limits.preemptions
        return most is None or self.preemptions + self._preempts(number) <= most

    def _preempts(self, number: int) -> bool:
        return number != self.last and self._can_step(self.actors[self.last])

    def do(self, choice: Choice) -> None:
        actor = self.actors[choice.actor]
        if choice.what == "step" and self.limits.preemptions is not None:
            self.preemptions += self._preempts(choice.actor)
        self.last = choice.actor
        if choice.what == "crash":
            self.crashes += 1
            actor.crash()
            actor.trace.append("crash")
            actor.start()
        elif choice.what == "lapse":
            self.lapses += 1
            actor.clock += LEASE_S
            actor.trace.append("lapse")
            actor.go_on(None)
        else:
            answer = self._answer(choice.actor, actor.pending) if actor.pending else None
            actor.trace.append(_read_of(answer) if actor.pending else _WOKEN)
            actor.go_on(answer)
            if not actor.over and actor.pending is None:
                actor.forget_poll()

    def key(self) -> bytes:
        """Digest of everything on which future events and the invariants depend."""
        actors = [(actor.trace, actor.over, actor.pending is None) for actor in self.actors]
        last = None if self.limits.preemptions is None else self.last
        state = (self.registry.models, actors, self.crashes, self.lapses, self.moves, last)
        return hashlib.sha256(repr(state).encode()).digest()

    def end(self) -> None:
        for actor in self.actors:
            if not actor.over:
                actor.crash()

    def _may_lapse(self, waiter: int) -> bool:
        others = [actor for number, actor in enumerate(self.actors) if number != waiter and not actor.over]
        stands_still = self.lapses < self.limits.lapses and (
            self.limits.lapses_before_writes or not any(map(_is_about_to_write, others))
        )
        return stands_still or not others

    def _answer(self, number: int, call: Call) -> Any:
        actor, before = self.actors[number], self.model.aliases.get("champion")
        try:
            answer = getattr(self.registry, call.name)(*call.args, **call.options)
        except MlflowException as error:
            answer = error
        actor.checked = call.name == "get_registered_model"
        if actor.checked:
            actor.seen = dict(self.model.tags)
        if (after := self.model.aliases.get("champion")) != before:
            versions = self.model.versions
            left = tuple(sorted(versions.get(before, {}))) if before else ()
            entered = versions[after] if after else {}
            turn, mark = int(entered.get(TURN_TAG, 0)), entered.get(ROLLBACK_TAG, "")
            self.moves.append(Move(number, str(before), str(after), actor.compared_with, turn, left, mark))
        return answer


def _read_of(answer: Any) -> str:
    """The part of an answer that the programs use: for a registered model, its tags."""
    return repr(answer if hasattr(answer, "version") else getattr(answer, "tags", answer))


def _is_about_to_write(actor: Actor) -> bool:
    return actor.checked and actor.pending is not None and actor.pending.name in WRITES


class Explored(NamedTuple):
    states: int
    orders: int


def explore(begin: Callable[[], Execution], check: Callable[[Execution], None]) -> Explored:
    """Visit every state that is reachable within the limits, and `check` each.

    An error of a check or of a program carries the order of events that led to it, as a note.
    """
    seen: dict[bytes, int] = {}
    ends = 0
    waiting: list[tuple[Choice, ...]] = [()]
    while waiting:
        path = waiting.pop()
        execution = begin()
        try:
            for choice in path:
                execution.do(choice)
            while True:
                check(execution)
                key = execution.key()
                if key in seen and seen[key] <= execution.preemptions:
                    break
                seen[key] = execution.preemptions
                choices = execution.choices()
                if not choices:
                    ends += 1
                    break
                waiting.extend((*path, other) for other in choices[1:])
                path = (*path, choices[0])
                execution.do(choices[0])
        except Exception as error:
            error.add_note(" ".join(f"{choice.actor}:{choice.what}" for choice in path))
            raise
        finally:
            execution.end()
    return Explored(len(seen), ends)
