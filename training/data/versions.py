"""Fingerprint and preparation of dataset versions: chooses the code for the kind of rows.

Kinds of rows are images with classes, images with numbers to predict, rows of a table, and texts. The digest of this
module is not in the run key, so that adding a kind of rows retrains no model.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import PIL

from training.code_closure import code_digests
from training.data import dataset
from training.data.manifest import write_manifest
from training.data.row_kinds import TARGET_KINDS, TARGET_MODULES, TEXT_MODULES
from training.errors import SettingError
from training.records import DatasetVersion, ProblemName, RawShard, SourceFiles, Split
from training.settings.schema import DataSettings
from training.storage.files import atomic_folder, digest_json

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from ray.data import Dataset

    from training.data.preparation.row_function import RowFunction

# Mean and standard deviation by which images with classes are normalised for another problem than classification: to
# -1 to 1. With the statistics of the rows, the signal-to-noise ratio at a noise level would depend on the dataset, so
# the errors of the noise that two models predict could not be compared.
_HALF = 0.5
# Kinds of SourceFiles with raw pixels, which Pillow at most converts and resizes. Other kinds have encoded images,
# which Pillow decodes, or, as Parquet, may have.
_PIXELS = frozenset({"cifar", "digits", "idx"})


def fingerprint(
    files: SourceFiles,
    settings: DataSettings,
    problem: ProblemName = "classification",
    transform: str = "",
) -> str:
    """See :func:`training.data.dataset.fingerprint`.

    The version of Pillow counts if Pillow decodes, converts or resizes images: versions give different pixels.
    """
    made = dataset.fingerprint(files, settings, problem, transform)
    if files.kind == "text":
        return _of_text(made, files, settings, problem, transform)
    if _uses_pillow(files, settings):
        made = digest_json({"images": made, "pillow": PIL.__version__})
    if _has_another_problem(files, problem):
        return digest_json({"images": made, "problem": problem, "scale": _HALF})
    if files.kind not in TARGET_KINDS:
        return made
    return digest_json({"images": made, "target": files.target, "code": code_digests(*TARGET_MODULES)})


def _uses_pillow(files: SourceFiles, settings: DataSettings) -> bool:
    if files.kind == "table":
        return False
    return files.kind not in _PIXELS or settings.image_size is not None or settings.channels is not None


def _has_another_problem(files: SourceFiles, problem: ProblemName) -> bool:
    """Whether the rows are images with classes, and the problem is not classification."""
    of_images = files.kind not in TARGET_KINDS and files.kind not in ("table", "text")
    return of_images and problem != DatasetVersion.model_fields["problem"].default


def _of_text(
    plain: str, files: SourceFiles, settings: DataSettings, problem: ProblemName, transform: str
) -> str:
    """Fingerprint of text. The source's digest, part of `plain`, covers a given tokenizer."""
    from training.data.text.tokenizers import library_version

    if transform:
        raise SettingError(
            f"transform_rows: {files.origin} is text, which a tokenizer converts. Remove the function; a tokenizer's "
            "normalizer can change the text, see docs/text.md."
        )
    used = {"max_tokens"} | (set() if files.tokenizer else {"vocabulary"})
    return digest_json(
        {
            "text": plain,
            "problem": problem,
            "settings": settings.model_dump(mode="json", include=used),
            "tokenizers": library_version(),
        }
    )


def transform_modules(files: SourceFiles) -> tuple[str, ...]:
    """See :func:`training.data.dataset.transform_modules`."""
    of_targets = TARGET_MODULES if files.kind in TARGET_KINDS else ()
    of_text = TEXT_MODULES if files.kind == "text" else ()
    return (*dataset.transform_modules(files), *of_targets, *of_text)


def make_version(
    name: str,
    identity: str,
    files: SourceFiles,
    raw: list[RawShard],
    settings: DataSettings,
    folder: Path,
    with_ray: bool,
    listing: Path | None = None,
    problem: ProblemName = "classification",
    function: "RowFunction | None" = None,
) -> DatasetVersion:
    """See :func:`training.data.preparation.prepare.make_version`."""
    if files.kind in TARGET_KINDS:
        from training.data.image_targets.preparation import make_version
    elif files.kind == "text":
        from training.data.text.preparation import make_version
    else:
        from training.data.preparation.prepare import make_version
    if _has_another_problem(files, problem):
        with atomic_folder(folder) as staging:
            plain = make_version(
                name, identity, files, raw, settings, staging / "images", with_ray, listing, problem, function
            )
            half = (_HALF,) * plain.image_shape[0]
            version = plain.model_copy(
                update={"problem": problem, "path": str(folder), "mean": half, "std": half}
            )
            for path in list(Path(plain.path).iterdir()):
                path.rename(staging / path.name)
            Path(plain.path).rmdir()
            write_manifest(version, staging)
        return version
    return make_version(name, identity, files, raw, settings, folder, with_ray, listing, problem, function)


def ray_dataset(version: DatasetVersion, split: Split, files: "FileSystem | None" = None) -> "Dataset":
    """See :func:`training.data.dataset.ray_dataset`."""
    if version.table is not None and version.has_images:
        from training.data.image_targets import unpacking

        return unpacking.ray_dataset(version, split, files)
    return dataset.ray_dataset(version, split, files)
