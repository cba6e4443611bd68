"""Checkpoints as a commit log: a new folder each, complete and digested or not there at all.

A folder holds `state.pt` (loaded with `weights_only=True`: nothing is unpickled) and `MANIFEST.json` with the
sha256 and size of it. It is written aside, synced and renamed. The newest folder whose manifest verifies is the
one to resume from; a damaged one is skipped with a warning, as is one whose metric points are damaged: the steps are
then computed again, and the points with them. Ray's own bookkeeping is never asked.
"""

import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from training.attempts.metrics import MetricsFile
from training.checkpoints.state_copies import StateCopies
from training.errors import DataError, TransientError
from training.records import Record
from training.settings.schema import CheckpointSettings
from training.storage.files import DigestedStream, atomic_folder, digest_file, remove_folder
from training.storage.record_files import find_record, read_record, record_text

log = logging.getLogger("evergreen.checkpoint")

FORMAT = 1
MANIFEST = "MANIFEST.json"
STATE = "state.pt"


class Manifest(Record):
    """What makes a folder a checkpoint: whose state it is, at which step, and its bytes.

    `points` is how many metric points had been written; checkpoints of earlier versions do not say.
    """

    format: int
    run_key: str
    epoch: int
    step_in_epoch: int
    step: int
    score: float | None
    sha256: str
    bytes: int | None = None
    contract: dict[str, str]
    points: int | None = None


@dataclass(frozen=True)
class Position:
    """How far a training is: `step` optimizer steps in all, `epoch` (0 for the first) and the step inside it."""

    epoch: int
    step_in_epoch: int
    step: int


@dataclass
class CheckpointLog:
    """The checkpoints of one run, newest last, under `folder`."""

    folder: Path
    settings: CheckpointSettings
    run_key: str
    conditions: dict[str, str] = field(default_factory=dict)  # of this attempt, besides those of its process
    before_commit: Callable[[], None] = lambda: None  # what must have happened before a checkpoint may count
    progress: Callable[[], None] = lambda: None  # called each second while a write is waited for
    pinned: int | None = None  # step of a checkpoint that is needed still
    metrics: MetricsFile | None = None  # of the run
    _damaged: list[Path] = field(default_factory=list, repr=False)
    _writer: threading.Thread | None = field(default=None, repr=False)
    _copied: threading.Event = field(default_factory=threading.Event, repr=False)
    _failure: list[BaseException] = field(default_factory=list, repr=False)
    _copies: StateCopies = field(default_factory=StateCopies, repr=False)

    def entries(self) -> list[Path]:
        """Folders of finished checkpoints, oldest first."""
        return sorted(path for path in self.folder.glob("step-*") if (path / MANIFEST).is_file())

    def save(
        self,
        position: Position,
        state: dict[str, Any],
        score: float | None,
        steady: Set[int] = frozenset(),
    ) -> None:
        """Copy `state` and commit it while training goes on.

        `score` is the validation loss when the checkpoint ends an epoch; lower is better. Tensors at the addresses
        in `steady` are copied while training goes on, too, and may change after :meth:`wait_until_copied`: the next
        forward and backward pass leaves them alone, as in CheckFreq (J. Mohan et al., FAST 2021). A write that is
        still under way is waited for first, and an error of it raised here.
        """
        self.wait_until_copied()
        copied = self._copies.take(state, steady)  # beside the one that may still be written
        self.wait()
        self._copied.clear()
        points = self.metrics.count() if self.metrics is not None else None
        self._writer = threading.Thread(
            target=self._write, args=(position, copied, score, points), daemon=True
        )
        self._writer.start()

    def wait_until_copied(self) -> None:
        """Return when all that was given to :meth:`save` may change."""
        if self._writer is not None:
            self._copied.wait()

    def wait(self) -> None:
        """Return when nothing is being written; raises what a write raised."""
        if self._writer is not None:
            while self._writer.is_alive():
                self._writer.join(timeout=1.0)
                self.progress()
            self._writer = None
        if self._failure:
            raise self._failure.pop()

    @property
    def busy(self) -> bool:
        """Whether a write is under way."""
        return self._writer is not None and self._writer.is_alive()

    def load_newest(self) -> "tuple[Position, dict[str, Any]] | None":
        """The newest checkpoint that verifies, with all metric points up to it, or None."""
        for path in reversed(self.entries()):
            try:
                manifest = self._verified(path)
                self._check_points(path, manifest)
                return self._load(path, manifest)
            except DataError as error:
                log.warning("%s; the checkpoint before it is used", error)
                self._damaged.append(path)
        return None

    def _write(
        self, position: Position, state: dict[str, Any], score: float | None, points: int | None
    ) -> None:
        import torch

        target = self.folder / _name(position.step)
        try:
            try:
                self._copies.fill()
            finally:
                self._copied.set()
            self._make_way(target)
            while self._damaged:  # they would be kept for the newest, and good ones given up for them
                remove_folder(self._damaged.pop())
            with atomic_folder(target) as aside:
                with (aside / STATE).open("wb") as out:  # a file of torch's own hides why a write failed
                    digested = DigestedStream(out)
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
                )
                (aside / MANIFEST).write_text(record_text(MANIFEST, manifest, target.name))
                self.before_commit()
            self._prune()
        except BaseException as error:  # handed to the training thread, which decides
            self._failure.append(error)

    def _load(self, path: Path, manifest: Manifest) -> tuple[Position, dict[str, Any]]:
        import torch

        if changed := _differences(manifest.contract, contract() | self.conditions):
            log.warning(
                "resuming under other conditions, so the last bits may differ: %s", "; ".join(changed)
            )
        try:
            state = torch.load(path / STATE, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise DataError(
                f"checkpoint {path}: holds more than data ({str(error).splitlines()[0]})"
            ) from None
        position = Position(manifest.epoch, manifest.step_in_epoch, manifest.step)
        if state.pop("position", None) != astuple(position) or path.name != _name(position.step):
            raise DataError(f"checkpoint {path}: its manifest tells of another step than its state")
        return position, state

    def _verified(self, path: Path) -> Manifest:
        """The manifest of a whole checkpoint of this run. Raises :class:`DataError` for any other."""
        try:
            manifest = read_manifest(path)
        except (OSError, DataError) as error:
            raise DataError(f"checkpoint {path}: its manifest can't be read ({error})") from None
        ours = manifest.format == FORMAT and manifest.run_key == self.run_key
        if not ours or not (path / STATE).is_file() or digest_file(path / STATE) != manifest.sha256:
            raise DataError(f"checkpoint {path}: not the bytes that its manifest lists")
        return manifest

    def _check_points(self, path: Path, manifest: Manifest) -> None:
        """Raises :class:`DataError` when metric points before the checkpoint would be missing for good."""
        if self.metrics is not None and not self.metrics.has_all(manifest.step, manifest.points):
            raise DataError(
                f"checkpoint {path}: metric points up to it are missing or damaged in {self.metrics.path}"
            )

    def _make_way(self, path: Path) -> None:
        """Remove a damaged checkpoint: the one that takes its place would else be given up for it."""
        try:
            if path.exists():
                self._verified(path)
        except DataError:
            remove_folder(path)

    def _prune(self) -> None:
        """Keep the newest, the best and the pinned one."""
        entries = self.entries()
        scored = sorted((score, path) for path in entries if (score := _score(path)) is not None)
        keep = set(entries[-self.settings.keep_newest :]) | {
            path for _, path in scored[: self.settings.keep_best]
        }
        if self.pinned is not None:
            keep.add(self.folder / _name(self.pinned))
        for path in entries:
            if path not in keep:
                remove_folder(path)

    def load_at(self, step: int) -> dict[str, Any]:
        """State of the checkpoint at `step`. Raises :class:`DataError` when it is damaged or gone."""
        path = self.folder / _name(step)
        return self._load(path, self._verified(path))[1]

    def load_step(self, step: int) -> dict[str, Any]:
        """State of the checkpoint at `step`.

        Raises :class:`TransientError` when it is damaged or gone; then it and all later ones are gone too, so that
        the next attempt computes them again.
        """
        try:
            return self.load_at(step)
        except DataError as error:
            for path in self.entries():
                if int(path.name.removeprefix("step-")) >= step:
                    remove_folder(path)
            raise TransientError(f"{error}; training goes on from the checkpoint before it") from error


def read_manifest(checkpoint: Path) -> Manifest:
    """The manifest in a checkpoint's folder.

    Raises :class:`training.storage.record_files.DamagedError`, and FileNotFoundError when there is none.
    """
    return read_record(checkpoint / MANIFEST, Manifest, checkpoint.name)


def contract() -> dict[str, str]:
    """What bit-identical results depend on beside the run key."""
    import torch

    return {
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "omp": os.environ.get("OMP_NUM_THREADS", ""),
    }


@contextmanager
def _without_crc() -> Iterator[None]:
    """Let torch write no CRC of each tensor, a quarter of the writing: the whole file has its sha256."""
    from torch.serialization import get_crc32_options, set_crc32_options

    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def _score(path: Path) -> float | None:
    """Validation loss at a checkpoint, if it has one and its manifest can be read."""
    manifest = find_record(path / MANIFEST, Manifest, path.name)
    return manifest.score if manifest is not None else None


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    return [
        f"{name} {before.get(name)} -> {value}" for name, value in now.items() if before.get(name) != value
    ]
