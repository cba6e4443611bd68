"""Checkpoints as a commit log: each checkpoint is a new folder that appears complete, with its digest, or not at all.

A folder holds `state.pt` (loaded with `weights_only=True`, so no code is unpickled) and `MANIFEST.json` with the
sha256 and size of `state.pt`. The folder is written under a temporary name, synced to disk and renamed. Training
resumes from the newest folder that matches its manifest. A damaged checkpoint is skipped with a warning, and so is a
checkpoint whose metric points are damaged: the steps after the checkpoint before it, and their points, are computed
again. Ray's own record of checkpoints is not used.

When the ranks hold tensors together, the folder also has the parts of all ranks (:mod:`training.checkpoints.parts`),
and the manifest has their digests. The first rank publishes the folder after all ranks have written their parts.
"""

import errno
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, cast

from training.attempts.metrics import MetricsFile
from training.checkpoints.checkpoint_files import (
    FORMAT,
    MANIFEST,
    STATE,
    Manifest,
    contract,
    read_manifest,
    read_state,
)
from training.checkpoints.parts import (
    Keys,
    OwnRows,
    part_files,
    separate,
    verify_parts,
    write_part,
)
from training.checkpoints.state_copies import StateCopies
from training.checkpoints.writers import Writers
from training.errors import DataError, TransientError
from training.settings.schema import CheckpointSettings
from training.storage.files import DigestedFile, atomic_folder, digest_file, remove_folder
from training.storage.paths import RunPaths
from training.storage.record_files import find_record, record_text

log = logging.getLogger("evergreen.checkpoint")


@dataclass(frozen=True)
class Position:
    """Progress of a training: `step` optimizer steps done, `step_in_epoch` of them in `epoch` (0 for the first)."""

    epoch: int
    step_in_epoch: int
    step: int


@dataclass
class CheckpointLog:
    """The checkpoints of one run, newest last, under `folder`."""

    folder: Path
    settings: CheckpointSettings
    run_key: str
    conditions: dict[str, str] = field(default_factory=dict)  # of this attempt, added to contract()
    # Called before a rename and before damaged checkpoints are removed; an error prevents both.
    before_commit: Callable[[], None] = lambda: None
    progress: Callable[[], None] = lambda: None  # called each second while `wait` waits for a write
    # Called with each number of bytes read, written or transferred.
    moved: Callable[[int], None] = lambda _: None
    pinned: int | None = None  # step of a checkpoint that must not be pruned
    metrics: MetricsFile | None = None  # the run's metric points, checked against each checkpoint
    writers: Writers = field(default_factory=Writers)
    _damaged: list[Path] = field(default_factory=list, repr=False)
    _writer: threading.Thread | None = field(default=None, repr=False)
    _copied: threading.Event = field(default_factory=threading.Event, repr=False)
    _failure: list[BaseException] = field(default_factory=list, repr=False)
    _copies: StateCopies = field(default_factory=StateCopies, repr=False)

    def entries(self) -> list[Path]:
        """Folders of complete checkpoints, oldest first."""
        return sorted(path for path in self.folder.glob("step-*") if (path / MANIFEST).is_file())

    def save(
        self,
        position: Position,
        state: dict[str, Any],
        score: float | None,
        steady: Set[int] = frozenset(),
    ) -> None:
        """Copy `state` and write the copy as a checkpoint in a background thread.

        `score` is the validation loss if the checkpoint ends an epoch (lower is better), else None. Tensors whose
        addresses are in `steady` are copied in the background, and the caller may change them only after
        :meth:`wait_until_copied`; all others are copied before this method returns. `steady` is for tensors that the
        next forward and backward pass does not change, as in CheckFreq (J. Mohan et al., FAST 2021). Waits for the
        previous write before it starts the next write, and raises the error of the previous write.

        If `writers` are several ranks, all of them call this method. Of the other ranks' states, only the
        :class:`OwnRows` are written.
        """
        self.wait_until_copied()
        rest, own_rows = separate(state)
        given = {
            "rest": rest if self.writers.is_first else {},
            "rows": {key: own.rows for key, own in own_rows.items()},
        }
        copied = self._copies.take(given, steady)  # into other memory than the copy still being written
        copied_rows = {key: replace(own, rows=copied["rows"][key]) for key, own in own_rows.items()}
        self.wait()
        self._copied.clear()
        points = self.metrics.count() if self.metrics is not None else None
        self._writer = threading.Thread(
            target=self._write, args=(position, copied["rest"], copied_rows, score, points), daemon=True
        )
        self._writer.start()

    def wait_until_copied(self) -> None:
        """Wait until the state given to :meth:`save` is copied, so that the caller may change it."""
        if self._writer is not None:
            self._copied.wait()

    def wait(self) -> None:
        """Wait until no checkpoint is being written. Raises the error of the last write, if it failed."""
        if self._writer is not None:
            while self._writer.is_alive():
                self._writer.join(timeout=1.0)
                self.progress()
            self._writer = None
        if self._failure:
            raise self._failure.pop()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writer is not None and self._writer.is_alive()

    def load_newest(self) -> "tuple[Position, dict[str, Any]] | None":
        """Position and state of the newest undamaged checkpoint with all metric points up to it, or None.

        Raises OSError at once if the disk fails, but for a checkpoint that the disk can't read (EIO): then only if no
        other checkpoint could be loaded.
        """
        unreadable: _UnreadableError | None = None
        for path in reversed(self.entries()):
            try:
                manifest = self._verified(path)
                self._check_points(path, manifest)
                return self._load(path, manifest)
            except DataError as error:
                log.warning("%s; the checkpoint before it is used", error)
                self._damaged.append(path)
                if isinstance(error, _UnreadableError):
                    unreadable = error
        if unreadable is not None:  # not a start from the beginning: the disk may be readable again later
            raise unreadable.error
        return None

    def _write(
        self,
        position: Position,
        state: dict[str, Any],
        rows: dict[Keys, OwnRows],
        score: float | None,
        points: int | None,
    ) -> None:
        target = self.path_at(position.step)
        parts_folder = target.with_name(f".{target.name}.{self.writers.token}.tmp")
        try:
            try:
                self._copies.fill()
            finally:
                self._copied.set()
            reports = self.writers.share(lambda: self._write_part(target, parts_folder, rows))
            if self.writers.is_first:
                manifest = self._commit(target, parts_folder, position, state, score, points, reports)
                self.publish(target, manifest, [uploaded for _, uploaded in reports])
                self.before_commit()  # a newer attempt alone decides which checkpoints stay
                self._prune()
        except BaseException as error:  # raised in the training thread by `wait`
            self._failure.append(error)
        finally:
            if self.writers.is_first:
                shutil.rmtree(parts_folder, ignore_errors=True)

    def _write_part(self, target: Path, parts_folder: Path, rows: dict[Keys, OwnRows]) -> tuple[str, str]:
        """Write this rank's part into `parts_folder`; returns its digest and the result of :meth:`keep_part`."""
        if self.writers.count == 1:
            return "", ""
        files = write_part(parts_folder, self.writers.rank, rows, self.moved)
        return digest_file(files[-1]), self.keep_part(files, target)

    def _commit(
        self,
        target: Path,
        parts_folder: Path,
        position: Position,
        state: dict[str, Any],
        score: float | None,
        points: int | None,
        reports: list[Any],
    ) -> Manifest:
        """Write the checkpoint with the files in `parts_folder` in one atomic rename; returns its manifest."""
        import torch

        self._make_way(target)
        if self._damaged:
            self.before_commit()
        # _prune counts folders: it would keep damaged checkpoints as the newest, and remove good ones.
        while self._damaged:
            remove_folder(self._damaged.pop())
        with atomic_folder(target, self.before_commit) as aside:
            with (aside / STATE).open("wb") as out:  # torch's own file object hides why a write failed
                digested = DigestedFile(out, self.moved)
                with _without_crc():
                    torch.save(state | {"position": astuple(position)}, cast(IO[bytes], digested))
            manifest = Manifest(
                format=FORMAT,
                run_key=self.run_key,
                epoch=position.epoch,
                step_in_epoch=position.step_in_epoch,
                step=position.step,
                score=score,
                sha256=digested.sha256.hexdigest(),
                bytes=digested.bytes,
                contract=contract() | self.conditions,
                points=points,
                parts=tuple(digest for digest, _ in reports if digest),
            )
            for rank in self.parts_here(len(manifest.parts)):
                for file in part_files(parts_folder, rank):
                    file.rename(aside / file.name)
            (aside / MANIFEST).write_text(record_text(MANIFEST, manifest, target.name))
        return manifest

    def _load(self, path: Path, manifest: Manifest) -> tuple[Position, dict[str, Any]]:
        if changed := _differences(manifest.contract, contract() | self.conditions):
            log.warning(
                "resuming under other conditions, so the last bits may differ: %s", "; ".join(changed)
            )
        state = read_state(path, manifest, self.moved)
        position = Position(manifest.epoch, manifest.step_in_epoch, manifest.step)
        if state.pop("position", None) != astuple(position) or path.name != _name(position.step):
            raise DataError(f"checkpoint {path}: its manifest tells of another step than its state")
        return position, state

    def _verified(self, path: Path) -> Manifest:
        """Manifest of a checkpoint of this run. Raises :class:`DataError` if damaged, or of another run or format.

        Raises OSError if the disk fails, but :class:`_UnreadableError` if it can't read the checkpoint (EIO).
        """
        try:
            return self._compared(path)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise _UnreadableError(f"checkpoint {path}: {error}", error) from error

    def _compared(self, path: Path) -> Manifest:
        """Manifest of a checkpoint. Raises :class:`DataError` if the manifest does not list the checkpoint's files."""
        try:
            manifest = read_manifest(path)
        except (FileNotFoundError, NotADirectoryError, DataError) as error:
            raise DataError(f"checkpoint {path}: its manifest can't be read ({error})") from None
        ours = manifest.format == FORMAT and manifest.run_key == self.run_key
        state = path / STATE
        if not (ours and state.is_file() and digest_file(state, self.moved) == manifest.sha256):
            raise DataError(f"checkpoint {path}: not the bytes that its manifest lists")
        verify_parts(path, manifest.parts, self.moved)
        return manifest

    def _check_points(self, path: Path, manifest: Manifest) -> None:
        """Raises :class:`DataError` if metric points up to the checkpoint are missing or damaged.

        A training that resumed there would never compute them again.
        """
        if self.metrics is not None and not self.metrics.has_all(manifest.step, manifest.points):
            raise DataError(
                f"checkpoint {path}: metric points up to it are missing or damaged in {self.metrics.path}"
            )

    def _make_way(self, path: Path) -> None:
        """Remove a damaged checkpoint at `path`: :func:`atomic_folder` would keep it and drop the new checkpoint."""
        try:
            if path.exists():
                self._verified(path)
        except DataError:
            self.before_commit()  # the checkpoint may belong to a newer attempt
            remove_folder(path)

    def publish(self, path: Path, manifest: Manifest, kept: list[str]) -> None:
        """Called after a checkpoint is complete in the folder `path`. Does nothing here; a subclass uploads it.

        `kept` has the result of :meth:`keep_part` of each rank.
        """

    def keep_part(self, files: list[Path], target: Path) -> str:
        """Called on each rank with the files of its part of the checkpoint `target`.

        Returns a text for :meth:`publish`, empty here.
        """
        del files, target
        return ""

    def parts_here(self, count: int) -> range:
        """The ranks whose parts the first rank puts into the checkpoint's folder on this disk, of `count` ranks."""
        return range(count)

    def publish_model(self, paths: RunPaths) -> None:
        """Called when the finished training is in `paths.model`. Does nothing here; a subclass uploads it."""

    def chosen(self, scores: Mapping[int, float | None]) -> set[int]:
        """Steps of the checkpoints to keep: the newest, the best and the pinned. `scores` is by step."""
        best = sorted((score, step) for step, score in scores.items() if score is not None)
        keep = set(sorted(scores)[-self.settings.keep_newest :])
        return keep | {step for _, step in best[: self.settings.keep_best]} | {self.pinned or 0}

    def _prune(self) -> None:
        """Remove all checkpoints but the newest, the best and the pinned one, as the settings say."""
        entries = {_step(path): path for path in self.entries()}
        keep = self.chosen({step: _score(path) for step, path in entries.items()})
        for step, path in entries.items():
            if step not in keep:
                remove_folder(path)

    def path_at(self, step: int) -> Path:
        """Folder of the checkpoint at `step`."""
        return self.folder / _name(step)

    def load_at(self, step: int) -> dict[str, Any]:
        """State of the checkpoint at `step`. Raises :class:`DataError` if it is damaged or missing."""
        path = self.path_at(step)
        return self._load(path, self._verified(path))[1]

    def load_step(self, step: int) -> dict[str, Any]:
        """State of the checkpoint at `step`.

        Raises :class:`TransientError` if the checkpoint is damaged or missing. Before, this method removes the
        checkpoint and all later ones, so that the next attempt computes their steps again.
        """
        try:
            return self.load_at(step)
        except DataError as error:
            self.before_commit()
            for path in self.entries():
                if _step(path) >= step:
                    remove_folder(path)
            raise TransientError(f"{error}; training resumes from the checkpoint before it") from error


class _UnreadableError(DataError):
    """The disk can't read a file of a checkpoint; `error` is the disk's error."""

    def __init__(self, message: str, error: OSError):
        super().__init__(message)
        self.error = error


@contextmanager
def _without_crc() -> Iterator[None]:
    """Turn off torch's CRC of each tensor, a quarter of the write time: a sha256 already covers the whole file."""
    from torch.serialization import get_crc32_options, set_crc32_options

    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def _score(path: Path) -> float | None:
    """Validation loss at a checkpoint; None if it has none or its manifest can't be read."""
    manifest = find_record(path / MANIFEST, Manifest, path.name)
    return manifest.score if manifest is not None else None


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    return [
        f"{name} {before.get(name)} -> {value}" for name, value in now.items() if before.get(name) != value
    ]
