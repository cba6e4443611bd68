"""Checkpoints in an object store: written to this node's disk as without a store, then uploaded and committed.

The folder of :class:`training.checkpoints.checkpoint_log.CheckpointLog` is on this node, and holds what this process
wrote or downloaded. The newest entry of the store's log lists the checkpoints of the run.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.attempts.fence import Fence
from training.checkpoints.checkpoint_files import MANIFEST, Manifest
from training.checkpoints.checkpoint_log import CheckpointLog, Position
from training.checkpoints.parts import part_files
from training.checkpoints.stored_run import RunState, StoredCheckpoint, StoredFile, StoredRun
from training.errors import DataError, TransientError
from training.storage.files import atomic_folder, digest_file, remove_folder
from training.storage.objects.base import ignored
from training.storage.paths import RunPaths
from training.storage.record_files import find_record

log = logging.getLogger("evergreen.checkpoint")

_METRICS = "metrics.jsonl"
_HISTORY = "attempts.jsonl"
_BESIDE_MODEL = (_METRICS, _HISTORY, "replay.json")  # files of a run that go with its finished model


@dataclass
class StoredCheckpointLog(CheckpointLog):
    """The checkpoints of a run whose settings name a `storage.url`."""

    stored: StoredRun = field(kw_only=True)
    _lost: set[int] = field(default_factory=set, repr=False)  # steps of damaged checkpoints

    def load_newest(self) -> "tuple[Position, dict[str, Any]] | None":
        for checkpoint in sorted(
            self.stored.state().checkpoints, key=lambda candidate: candidate.step, reverse=True
        ):
            try:
                self._download(checkpoint, with_metrics=True)
            except DataError as error:
                log.warning("%s The checkpoint before it is used", error)
                remove_folder(self.path_at(checkpoint.step))
            else:
                if (newest := super().load_newest()) is not None:
                    return newest
            self._lost.add(checkpoint.step)
        return None

    def load_at(self, step: int) -> dict[str, Any]:
        if self._is_here(self.path_at(step)):
            try:
                return super().load_at(step)
            except DataError as error:
                log.warning("%s. It is downloaded again", error)
                remove_folder(self.path_at(step))
        if not self._is_here(self.path_at(step)):
            checkpoints = [
                checkpoint for checkpoint in self.stored.state().checkpoints if checkpoint.step == step
            ]
            if not checkpoints:
                raise DataError(f"{self.stored.store.url}/{self.stored.prefix}: no checkpoint at step {step}")
            self._download(checkpoints[0])
        return super().load_at(step)

    def load_step(self, step: int) -> dict[str, Any]:
        try:
            return self.load_at(step)
        except DataError as error:
            self.stored.commit(
                lambda state: state.model_copy(
                    update={
                        "checkpoints": tuple(
                            checkpoint for checkpoint in state.checkpoints if checkpoint.step < step
                        )
                    }
                )
            )
            raise TransientError(f"{error} Training resumes from the checkpoint before it") from error

    def keep_part(self, files: list[Path], target: Path) -> str:
        if self.writers.is_first:
            return ""  # uploaded with the other files of the checkpoint
        folder = self.stored.folder_of(self.writers.token)
        uploaded = self.stored.upload(
            {f"{target.name}/{file.name}": file for file in files}, self.moved, folder
        )
        for file in files:
            file.unlink()
        return json.dumps([stored_file.model_dump() for stored_file in uploaded])

    def parts_here(self, count: int) -> range:
        return range(min(count, 1))

    def publish(self, path: Path, manifest: Manifest, kept: list[str]) -> None:
        if self.metrics is not None and self.metrics.path.is_file():
            # A copy: the training goes on, and appends points to the file.
            shutil.copyfile(self.metrics.path, path / _METRICS)
        files = {f"{path.name}/{file.name}": file for file in sorted(path.iterdir())}
        parts = [StoredFile.model_validate(fields) for text in kept if text for fields in json.loads(text)]
        uploaded = (*self.stored.upload(files, self.moved), *parts)
        made = StoredCheckpoint(step=manifest.step, score=manifest.score, files=uploaded)

        def added(state: RunState) -> RunState:
            others = [
                checkpoint
                for checkpoint in state.checkpoints
                if checkpoint.step != made.step and checkpoint.step not in self._lost
            ]
            return state.model_copy(update={"checkpoints": self._kept([*others, made])})

        before, after = self.stored.commit(added)
        self._lost.clear()  # the entry just written does not name them
        self.stored.delete(tuple(set(_files(before)) - set(_files(after))))

    def publish_model(self, paths: RunPaths) -> None:
        upload_model(self.stored, paths, self.moved)

    def _kept(self, checkpoints: list[StoredCheckpoint]) -> tuple[StoredCheckpoint, ...]:
        kept = self.chosen({checkpoint.step: checkpoint.score for checkpoint in checkpoints})
        return tuple(
            sorted(
                (checkpoint for checkpoint in checkpoints if checkpoint.step in kept),
                key=lambda checkpoint: checkpoint.step,
            )
        )

    def _download(self, checkpoint: StoredCheckpoint, with_metrics: bool = False) -> None:
        """Download a checkpoint; `with_metrics` also replaces the metric points by those up to the checkpoint."""
        path = self.path_at(checkpoint.step)
        metrics = f"{path.name}/{_METRICS}"
        names = {file.name for file in checkpoint.files if file.name.startswith(f"{path.name}/")}
        targets = {name: self.folder / name for name in names - {metrics}}
        if with_metrics and self.metrics is not None:
            targets[metrics] = self.metrics.path
        self.stored.download(checkpoint.files, targets, self.moved)

    def _is_here(self, path: Path) -> bool:
        """Whether all files of the checkpoint are in the folder `path`; the disk may lack parts of other ranks."""
        manifest = find_record(path / MANIFEST, Manifest, path.name)
        parts = range(len(manifest.parts)) if manifest is not None else ()
        return path.is_dir() and all(file.is_file() for rank in parts for file in part_files(path, rank))


def upload_model(stored: StoredRun, paths: RunPaths, moved: Callable[[int], None] = ignored) -> None:
    """Upload the finished training in `paths` and commit it. Raises the errors of :meth:`StoredRun.commit`."""
    files = {f"{paths.model.name}/{file.name}": file for file in sorted(paths.model.iterdir())}
    files |= {name: paths.root / name for name in _BESIDE_MODEL if (paths.root / name).is_file()}
    uploaded = stored.upload(files, moved)
    stored.commit(lambda state: state.model_copy(update={"model": uploaded}))


def download_model(stored: StoredRun, paths: RunPaths) -> bool:
    """Download the finished training of a run; returns False if the store has no finished training.

    A history of attempts that this machine already has is not overwritten. Afterwards, this machine's fence names the
    newest attempt in the store, or its own if that is newer. Raises :class:`DataError` if a file in the store is
    missing or damaged.
    """
    state = stored.state()
    files = state.model
    if not files:
        return False
    Fence.follow(paths, state.attempt, state.group, state.driver)
    with atomic_folder(paths.model) as aside:
        prefix = f"{paths.model.name}/"
        inside = [file.name for file in files if file.name.startswith(prefix)]
        beside = [
            file.name
            for file in files
            if file.name in _BESIDE_MODEL and _must_be_replaced(paths.root / file.name, file.sha256)
        ]
        targets = {name: aside / name.removeprefix(prefix) for name in inside}
        stored.download(files, targets | {name: paths.root / name for name in beside})
    return True


def _must_be_replaced(file: Path, sha256: str) -> bool:
    """Whether to download the store's file: this machine lacks the file, or has other content.

    A history that is here is never replaced.
    """
    return not file.exists() or (file.name != _HISTORY and digest_file(file) != sha256)


def _files(state: RunState) -> Iterable[StoredFile]:
    return [file for checkpoint in state.checkpoints for file in checkpoint.files]
