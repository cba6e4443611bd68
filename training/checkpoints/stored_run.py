"""A run's checkpoints and model in an object store, committed by a log of numbered entries.

Log entry `log/<number>.json` is the whole state of the run: the newest attempt, the checkpoints and the finished
model. A writer reads the newest entry, checks that no other attempt superseded its own, and creates the entry with
the next number. Creation fails if this entry exists. So the slower of two writers has to read the log again, and then
reads the faster writer's entry: a superseded attempt can't commit, whatever the clocks say and however long it
paused. Each upload has its own prefix, `files/<attempt>.<group>-<random>/`; a file belongs to the run only once an
entry names it.

If the newest entry is damaged, its commit is lost: the next attempt continues from the entry before it. A worker
can't know whether the damaged entry superseded its attempt, so the worker commits nothing more.
"""

import logging
import re
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, ValidationError

from training.attempts.fence import Fence, RivalDriverError, SupersededError
from training.errors import DataError, TransientError
from training.records import Record
from training.storage.files import atomic_file, digest_file, temporary_folder
from training.storage.objects.base import ObjectStore, ignored
from training.storage.record_files import DamagedError, parse_record, record_text

log = logging.getLogger("evergreen.checkpoint")

_TRIES = 5
_ENTRY = re.compile(r"\d{9}\.json")
_UPLOAD = re.compile(r"(\d+)\.(\d+)-")


class DamagedEntryError(DataError):
    """An entry of the log is missing, or is not what was written."""


class StoredFile(Record):
    """A file in the store: its name in the run, its key and its content's sha256."""

    name: str = Field(pattern=r"^[\w-][\w.-]*(/[\w-][\w.-]*)?$")
    key: str = Field(pattern=r"^runs(/[\w-][\w.-]*)+$")
    sha256: str


class StoredCheckpoint(Record):
    """A checkpoint in the store; `score` is its validation loss if it ends an epoch (lower is better)."""

    step: int
    score: float | None
    files: tuple[StoredFile, ...]


class RunState(Record):
    """One entry of the log. `writer` is a random id by which the writing process recognises its entry.

    Only group `group` of workers of attempt `attempt`, started by `driver`, may append the next entry with a commit.
    """

    number: int = 0
    writer: str = ""
    attempt: int = 0
    group: int = 0
    driver: str = ""
    dataset: str = Field("", description="prefix of the dataset that the run learns; empty: not recorded")
    checkpoints: tuple[StoredCheckpoint, ...] = ()
    model: tuple[StoredFile, ...] = Field(
        (), description="files of the finished training; none: not finished"
    )


@dataclass
class StoredRun:
    """The run under a key prefix of a store. Commits need the `fence` of this attempt and group of workers."""

    store: ObjectStore
    prefix: str
    fence: Fence | None = None
    dataset: str = ""
    _known: dict[int, RunState] = field(default_factory=dict)

    def state(self) -> RunState:
        """The newest undamaged entry of the log, with the number of the newest entry; an empty state without entries.

        With that number, the next entry is appended after all entries. Raises :class:`DataError` when all entries are
        damaged, or when another version of Evergreen wrote an entry that can't be read.
        """
        damage: list[DamagedEntryError] = []
        for number in reversed(numbers := self._numbers()):
            try:
                state = self._entry(number)
            except DamagedEntryError as error:
                damage.append(error)
                continue
            for skipped in damage:
                log.warning(
                    "%s The run continues from the entry before it; what it committed is computed again.",
                    skipped,
                )
            return state.model_copy(update={"number": numbers[-1]})
        if damage:
            raise DataError(
                f"{damage[0]} All entries before it are damaged, too. Delete {self.store.url}/{self.prefix} and run "
                "again: the training begins again."
            )
        return RunState()

    def newest_entry(self) -> RunState:
        """The newest entry of the log, or an empty state. Raises :class:`DataError` when that entry is damaged."""
        numbers = self._numbers()
        return self._entry(numbers[-1]) if numbers else RunState()

    def _undamaged_state(self) -> RunState:
        """The newest entry of the log. Raises :class:`TransientError` when the newest entry is damaged."""
        try:
            return self.newest_entry()
        except DamagedEntryError as error:
            raise TransientError(
                f"{error} It may be the entry of a newer attempt, so nothing is committed. Run the same "
                "command again: the run continues from the entry before it."
            ) from error

    def begin(self, driver: str, at_least: int, directly_after: RunState | None = None) -> int:
        """Append a new attempt of `driver` to the log, with a number of at least `at_least`; returns the number.

        Deletes the files that earlier attempts uploaded and did not commit. Raises :class:`SupersededError` if the
        state `directly_after` is given and another entry follows it.
        """
        before = directly_after or self.state()
        while True:
            number = max(before.attempt + 1, at_least)
            update = {"attempt": number, "group": 0, "driver": driver, "dataset": self.dataset}
            entry = before.model_copy(update=update)
            if self._try_append(before, entry):
                break
            if directly_after is not None:
                raise SupersededError(f"another process continues the run in {self.store.url}/{self.prefix}.")
            before = self.state()
        self.store.delete(self.unused(entry))
        return number

    def enter(self) -> None:
        """Append this group of workers to the log; its first worker calls this. Older groups can't commit afterwards.

        Raises :class:`SupersededError` if a newer attempt or group has begun, and :class:`TransientError` if the
        newest entry is damaged.
        """
        fence = self.fence
        assert fence is not None
        while True:
            before = self._undamaged_state()
            if (before.attempt, before.driver) != (fence.number, fence.driver) or before.group >= fence.group:
                raise SupersededError(
                    f"attempt {fence.number}.{fence.group} of driver {fence.driver or 'unknown'} was superseded by "
                    f"attempt {before.attempt}.{before.group} of driver {before.driver or 'unknown'}"
                )
            if self._try_append(before, before.model_copy(update={"group": fence.group})):
                return

    def commit(self, change: Callable[[RunState], RunState]) -> tuple[RunState, RunState]:
        """Append the result of `change`, called with the newest state; returns the states before and after.

        Raises :class:`SupersededError` if another attempt or group of workers began after this one, and
        :class:`TransientError` if the newest entry is damaged.
        """
        fence = self.fence
        assert fence is not None
        while True:
            before = self._undamaged_state()
            if (before.attempt, before.group, before.driver) != (fence.number, fence.group, fence.driver):
                raise SupersededError(
                    f"attempt {fence.number}.{fence.group} of the run in {self.store.url}/{self.prefix} was "
                    f"superseded by attempt {before.attempt}.{before.group}"
                )
            if self._try_append(before, change(before)):
                return before, self._known[before.number + 1]

    def check_driver(self, fence: Fence) -> None:
        """Raises :class:`RivalDriverError` if another driver has begun an attempt since the attempt of `fence`."""
        newest = self.state()
        if newest.attempt >= fence.number and newest.driver != fence.driver:
            raise RivalDriverError(
                f"Another process ({newest.driver}) trains the run in {self.store.url}/{self.prefix} as well: attempt "
                f"{newest.attempt} belongs to that process, so this process ends. Wait for the other process to end; "
                "then the same command resumes."
            )

    def folder_of(self, token: str) -> str:
        """A new prefix for an upload; `token` begins with the numbers of the attempt and of the group of workers."""
        return f"{self.prefix}/files/{token}-{uuid.uuid4().hex}"

    def upload(
        self, files: dict[str, Path], moved: Callable[[int], None] = ignored, folder: str = ""
    ) -> tuple[StoredFile, ...]:
        """Upload `files`, by name in the run, under a new prefix; a :meth:`commit` must then name them.

        `folder` is the prefix, from :meth:`folder_of`; by default it is one of this group of workers.
        """
        if not folder:
            assert self.fence is not None
            folder = self.folder_of(f"{self.fence.number}.{self.fence.group}")
        stored = []
        for name, path in files.items():
            key = f"{folder}/{name}"
            self.store.put_file(key, path, moved)
            stored.append(StoredFile(name=name, key=key, sha256=digest_file(path, moved)))
        return tuple(stored)

    def download(
        self,
        files: tuple[StoredFile, ...],
        targets: dict[str, Path],
        moved: Callable[[int], None] = ignored,
    ) -> None:
        """Download the files that `targets` names.

        Raises :class:`DataError` for a file that is missing, or that is not what was uploaded.
        """
        for file in files:
            if file.name not in targets:
                continue
            with atomic_file(targets[file.name], durable=False) as aside:  # checked before each use
                try:
                    self.store.get_file(file.key, aside, moved)
                except FileNotFoundError:
                    raise DataError(f"{self.store.url}/{file.key}: missing.") from None
                if digest_file(aside, moved) != file.sha256:
                    raise DataError(f"{self.store.url}/{file.key}: not the bytes that were uploaded.")

    def damage(self, files: tuple[StoredFile, ...]) -> list[str]:
        """Download each of `files`; returns a message for each file that is missing or not what was uploaded."""
        problems = []
        for file in files:
            with temporary_folder("verify") as folder:
                try:
                    self.download((file,), {file.name: folder / "object"})
                except DataError as error:
                    problems.append(str(error))
        return problems

    def delete(self, files: tuple[StoredFile, ...]) -> None:
        """Delete files that the newest entry does not name."""
        try:
            self.store.delete(file.key for file in files)
        except TransientError as error:  # the next attempt deletes what no entry names
            log.warning("%s", error)

    def _try_append(self, before: RunState, entry: RunState) -> bool:
        """Append `entry` after `before`; False if another process appended first.

        When the store's answer is lost, the method tries again; the entry's `writer` shows whether the first try wrote
        the entry.
        """
        writer = uuid.uuid4().hex
        entry = entry.model_copy(update={"number": before.number + 1, "writer": writer})
        name = _name(entry.number)
        content = record_text(name, entry, self.prefix).encode()
        for tries_left in reversed(range(_TRIES)):
            try:
                created = self.store.put_new(f"{self.prefix}/log/{name}", content)
                # A library may have sent the request twice: the second request then fails, as the entry exists.
                created = created or self._is_of(writer, entry.number)
            except TransientError:
                if not tries_left:
                    raise
                continue
            if created:
                self._known = {entry.number: entry}
            return created
        raise AssertionError

    def _is_of(self, writer: str, number: int) -> bool:
        try:
            return self._entry(number).writer == writer
        except DamagedEntryError:
            return False

    def _numbers(self) -> list[int]:
        """Numbers of the log's entries, in order."""
        names = [key.rpartition("/")[2] for key in self.store.keys(f"{self.prefix}/log")]
        return sorted(int(name.removesuffix(".json")) for name in names if _ENTRY.fullmatch(name))

    def _entry(self, number: int) -> RunState:
        """The entry `number`.

        Raises :class:`DamagedEntryError`, and :class:`DataError` for an entry of another version of Evergreen.
        """
        if number not in self._known:  # an entry never changes
            self._known = {number: self._read(number)}
        return self._known[number]

    def _read(self, number: int) -> RunState:
        key = f"{self.prefix}/log/{_name(number)}"
        try:
            return parse_record(self.store.get(key), Path(_name(number)), RunState, self.prefix)
        except FileNotFoundError:
            raise DamagedEntryError(f"{self.store.url}/{key}: missing.") from None
        except DamagedError as error:
            if isinstance(error.__cause__, ValidationError):  # the checksum is right
                raise DataError(
                    f"{self.store.url}/{key}: not readable ({error.what}). Continue with the version of Evergreen that "
                    f"wrote it, or delete {self.store.url}/{self.prefix}: the training begins again."
                ) from error
            raise DamagedEntryError(f"{self.store.url}/{key}: damaged ({error.what}).") from error

    def unused(self, state: RunState) -> list[str]:
        """Keys of files that `state` does not name, uploaded by attempts or groups before the newest ones in `state`.

        No later entry can name these files, because only the newest attempt and group can commit.
        """
        used = {file.key for checkpoint in state.checkpoints for file in checkpoint.files}
        used |= {file.key for file in state.model}
        files = f"{self.prefix}/files/"
        return [
            key
            for key in self.store.keys(files.rstrip("/"))
            if key not in used and _uploaded_by(key.removeprefix(files)) < (state.attempt, state.group)
        ]

    def drop_checkpoints(self) -> None:
        """Remove the checkpoints of a finished run: append an entry without checkpoints, then delete their files."""
        before = self.newest_entry()
        if before.model and self._try_append(before, before.model_copy(update={"checkpoints": ()})):
            self.delete(tuple(file for checkpoint in before.checkpoints for file in checkpoint.files))

    def remove(self, known: RunState, driver: str) -> bool:
        """Delete all objects of the run, unless an attempt or a commit followed `known`; returns whether it did.

        First an attempt of `driver` fences out workers that may still live. Its entry names no file, so that a removal
        that is interrupted leaves a run without checkpoints, and not one with damaged checkpoints. The log goes last.
        """
        update = {"attempt": known.attempt + 1, "group": 0, "driver": driver, "checkpoints": (), "model": ()}
        if not self._try_append(known, known.model_copy(update=update)):
            return False
        keys = self.store.keys(self.prefix)
        entries = [key for key in keys if key.startswith(f"{self.prefix}/log/")]
        self.store.delete(key for key in keys if key not in entries)
        self.store.delete(entries)
        return True


def _name(number: int) -> str:
    return f"{number:09d}.json"


def _uploaded_by(key: str) -> tuple[int, int]:
    """Attempt and group of workers that uploaded a file, from its key below `files/`.

    For an object that Evergreen did not upload, a number above all attempts, so that the object counts as new and is
    kept.
    """
    match = _UPLOAD.match(key)
    return (int(match[1]), int(match[2])) if match else (sys.maxsize, 0)
