"""I7: files under a final name are complete and undamaged, and no half-written file is left."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt

from tasks.comparison import COMPARISON, EVALUATION, Comparison, comparison_folders, owner_of
from tasks.verify.evidence import Evidence
from tasks.verify.finding import NoEvidence, Outcome, few, judged
from tasks.verify.part_inputs import input_columns, inputs_of
from tasks.verify.residue import is_at_work
from training.attempts.history import Attempt, Failure
from training.attempts.metrics import Point
from training.checkpoints.checkpoint_files import FORMAT, STATE, read_manifest
from training.checkpoints.parts import verify_parts
from training.checkpoints.weights import digest_of_file
from training.data.dataset import binary_to_numpy
from training.data.manifest import check_parts, read_parts
from training.errors import DataError, SettingError
from training.plan import RunPlan
from training.profile_records import DataCheck
from training.recipe_copy import check_copy
from training.records import DatasetVersion, Evaluation, Record, Release, ReplayOutcome, Split, TrainedModel
from training.storage.files import digest_file
from training.storage.paths import TRAINED
from training.storage.record_files import DamagedError, read_lines, read_record

_OLDER_NAMES = {"inputs": "images", "targets": "labels"}
_HALF_DONE = ("*.tmp", "*.removed")


def records(run: Evidence) -> Outcome:
    """Every record of the run is readable and undamaged."""
    paths, owner = run.paths, run.paths.root.name
    whole: dict[Path, tuple[type[Record], str]] = {
        paths.ingredients: (RunPlan, owner),
        paths.model / TRAINED: (TrainedModel, owner),
        paths.release: (Release, owner),
        paths.replay: (ReplayOutcome, owner),
        paths.data_check: (DataCheck, owner),
    }
    for folder in comparison_folders(paths):
        whole[folder / COMPARISON] = Comparison, owner_of(folder)
        whole[folder / EVALUATION] = Evaluation, owner_of(folder)
    by_line: dict[Path, type[Record]] = {
        paths.attempts: Attempt,
        paths.failures: Failure,
        paths.metrics: Point,
    }
    damage = {file: _damage(file, *what) for file, what in whole.items() if file.exists()}
    for file, kind in by_line.items():
        if file.exists():  # when a run resumes, it ignores a last line that a crash cut short
            damage[file] = read_lines(file, kind, owner, appended=not run.is_finished).damage
    problems = [f"{file}: {what}" for file, what in damage.items() if what]
    return judged(problems, ", ".join(file.name for file in damage))


def checkpoints(run: Evidence) -> Outcome:
    """Each checkpoint is complete and has the content that its manifest describes."""
    folders = sorted(run.paths.checkpoints.glob("step-*"))
    problems = [problem for folder in folders for problem in _wrong_with_checkpoint(run, folder)]
    return judged(
        problems, f"sha256 of {len(folders)}: {', '.join(folder.name for folder in folders) or 'none kept'}"
    )


def dataset(run: Evidence) -> Outcome:
    """The dataset's manifest and part files have the content that was written."""
    folder = run.home.dataset(run.plan.recipe.name, run.plan.fingerprint)
    try:
        version = run.dataset
        check_parts(version)
    except (DataError, NoEvidence) as error:
        return Outcome(False if folder.is_dir() else None, str(error))
    parts = sum(map(len, version.parts.values()))
    return Outcome(True, f"sha256 of {parts} part files, {version.bytes:,} bytes")


def columns(run: Evidence) -> Outcome:
    """The unpacked columns, which the workers read, hold the rows of the part files."""
    version = run.dataset
    unpacked = [split for split in version.parts if _unpacked(version, split).is_dir()]
    if not unpacked:
        return Outcome(True, "none are unpacked")
    try:
        problems = [problem for split in unpacked for problem in _wrong_with_columns(version, split)]
    except DataError as error:
        raise NoEvidence(str(error)) from error
    return judged(problems, f"{' and '.join(unpacked)}, row by row")


def recipe(run: Evidence) -> Outcome:
    """The run's copy of the recipe has the digest that the plan records."""
    try:
        files = check_copy(run.plan.recipe, run.paths.recipe, any_version=True)
    except SettingError as error:
        return Outcome(False, str(error))
    others = len(run.plan.recipe.files) - len(files)
    end = f"; {others} of Evergreen's own files, which it uses, have changed since" if others else ""
    return Outcome(True, f"digest {run.plan.recipe.digest[:16]} of {len(files)} files{end}")


def initial_weights(run: Evidence) -> Outcome:
    """The run's copy of the weights from which training started has the digest that the plan and the run key have."""
    initial, file = run.plan.initial, run.paths.initial_weights
    if initial is None:
        return Outcome(True, "none: training started from new weights")
    if not file.is_file():
        raise NoEvidence(f"{file} is missing", ok=False if run.attempts else None)
    try:
        digest = digest_of_file(file)
    except DataError as error:
        return Outcome(False, str(error))
    wanted = {"the plan": initial.digest, "the run key": run.plan.ingredients.get("initial_weights")}
    wrong = [
        f"{file}: weights {digest[:16]}, not those of {where}"
        for where, expected in wanted.items()
        if expected != digest
    ]
    return judged(wrong, f"{digest[:16]}, as planned: {initial.name}")


def nothing_half_done(run: Evidence) -> Outcome:
    """No temporary file and no half-deleted folder is left of the run, its data and its artifacts."""
    leftovers = sorted(
        {left for folder in _places(run) for pattern in _HALF_DONE for left in folder.rglob(pattern)}
    )
    if leftovers and run.is_finished and is_at_work(run, run.plan.recipe.name):
        raise NoEvidence(
            f"a process works on recipe {run.plan.recipe.name}, and may be writing {few(leftovers)}"
        )
    return judged([f"{left} is left" for left in leftovers], "no *.tmp, no *.removed")


def _damage(file: Path, kind: type[Record], owner: str) -> str:
    try:
        read_record(file, kind, owner)
    except DamagedError as error:
        return error.what
    return ""


def _wrong_with_checkpoint(run: Evidence, folder: Path) -> Iterator[str]:
    try:
        manifest = read_manifest(folder)
        state = folder / STATE
        actual = {
            "format": FORMAT,
            "run_key": run.plan.run_key,
            "step": int(folder.name.removeprefix("step-")),
            "bytes": state.stat().st_size,
            "sha256": digest_file(state),
        }
        verify_parts(folder, manifest.parts)
    except (OSError, ValueError, DataError) as error:
        yield f"{folder.name}: {type(error).__name__}: {error}"
        return
    for name, value in actual.items():
        if (listed := getattr(manifest, name)) != value:
            yield f"{folder.name}: {name} is {value}, its manifest says {listed}"


def _wrong_with_columns(version: DatasetVersion, split: Split) -> Iterator[str]:
    folder, start = _unpacked(version, split), 0
    try:
        unpacked = {
            name: np.load(_column_file(folder, name), mmap_mode="r")
            for name in ("inputs", "targets", "digests")
        }
    except (OSError, ValueError) as error:
        yield f"{folder}: {type(error).__name__}: {error}"
        return
    if {len(column) for column in unpacked.values()} != {version.rows(split)}:
        yield f"{folder}: {len(unpacked['inputs'])} rows, not {version.rows(split)}"
        return
    for part in read_parts(version, split, [*input_columns(version), "label", "digest"]):
        rows = slice(start, start := start + len(part))
        wanted = {
            "inputs": inputs_of(part, version),
            "targets": part["label"].to_numpy(),
            "digests": binary_to_numpy(part["digest"], np.uint64)[:, 0],
        }
        for name, values in wanted.items():
            if not _same(values, unpacked[name][rows]):
                yield f"{_column_file(folder, name)}: rows from {rows.start} on are not those of the part file"


def _column_file(folder: Path, name: str) -> Path:
    """The file of an unpacked column; earlier versions of Evergreen, which served images alone, named two otherwise."""
    older = folder / f"{_OLDER_NAMES.get(name, name)}.npy"
    return older if older.exists() else folder / f"{name}.npy"


def _same(array: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Whether the arrays have the same values; missing values of a table are NaN."""
    return np.array_equal(array, other, equal_nan=np.issubdtype(array.dtype, np.floating))


def _unpacked(version: DatasetVersion, split: Split) -> Path:
    return Path(version.path) / f".columns-{split}"


def _places(run: Evidence) -> Iterator[Path]:
    """Folders of the run, of its recipe's datasets and raw rows, and of its artifacts if they are on a local disk."""
    yield run.paths.root
    try:
        yield run.home.datasets / run.plan.recipe.name
        yield run.home.raw_rows(run.plan.recipe.name, run.plan.fingerprint)
        store = run.store
        models = [
            store.client.get_model_version_download_uri(version.name, version.version)
            for version in run.versions
        ]
        for uri in (store.run.info.artifact_uri, *models):
            if uri.startswith("file:"):
                yield Path(unquote(urlsplit(uri).path))
    except NoEvidence:
        return  # without a plan or an MLflow store, no further folder is known
