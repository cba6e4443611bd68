"""In: a registered version. Out: the model, loaded from files that can't run code.

Other people may write to a registry. Loading a model can run their code: MLflow imports the modules that a model's
`MLmodel` names, puts folders of the model on Python's path and unpickles files, torch evaluates strings of a program,
and XGBoost does not check indices in trees. A model that would use any of these is refused before a loader opens its
files; :mod:`tasks.model_formats` has the rules of each format. A model on a table has a file of code, which encodes
raw columns for other programs: the file must have the bytes that Evergreen wrote, and is not run here. The digests of
the model file and of the metadata must also match those recorded at registration: in the registry's tags, and in the
home that registered the version.
"""

import math
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tasks.model_formats.base import ModelFormat, Registered, format_in
from tasks.model_formats.table_models import rows_of_table
from tasks.model_formats.tokenizer_file import TOKENIZER_FILE, tokenizer_digest
from tasks.registry.own_digests import kept_digests, record_of
from tasks.trackers.mlflow_store import NO_PICKLE
from training.data.manifest import TOKENIZER
from training.errors import DataError, EvergreenError, ResourceError, SettingError, classify
from training.problems import problem_named
from training.problems.base import Predict, Predictions
from training.records import ImageShape, ProblemName, TableSchema
from training.seams import install_command
from training.storage.files import digest_file, digest_json, temporary_folder
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.models import Model, ModelSignature

FILE_TAG = "evergreen.model_file"  # sha256 of the model file, as of an exported program
METADATA_TAG = "evergreen.model_metadata"  # sha256 of the metadata in `MLmodel`: classes, columns and so on
TRANSFORM_TAG = "evergreen.transform"  # digest of the recipe's function `transform_rows`; absent without one
THRESHOLD_TAG = "evergreen.threshold"  # of two classes, as in the metadata; absent without a threshold
WEIGHTS_FILE_TAG = "evergreen.weights_file"  # sha256 of the weights file, for further training


def load_checked(home: Home, model: str, number: str) -> Registered:
    """Load version `number` of `model` from the registry that MLflow is configured for, after checking its files.

    Raises :class:`DataError` when the files are damaged, or are not what Evergreen registers, and
    :class:`SettingError` when the library that loads the model is not installed.
    """
    name = f"model {model} version {number}"
    with _checked_files(home, model, number) as (folder, model_format, described):
        predict = model_format.load(folder)
        metadata = _read_metadata(described.metadata)
        tokenizer = _tokenizer_in(folder, metadata.table)
    signature = described.signature
    shape = _shape_of_table(metadata.table) or image_shape(signature, name)
    outputs = _outputs(signature)
    rows = problem_named(metadata.problem).rows_at_once(outputs, metadata.table)
    if metadata.table is not None and getattr(model_format, "SCORES_MANY_ROWS", False):
        rows = rows_of_table(metadata.table)  # few rows at a time are scored slowly
    return Registered(
        predict=_in_parts(predict, rows),
        problem=metadata.problem,
        classes=metadata.classes,
        shape=shape,
        table=metadata.table,
        outputs=outputs,
        tokenizer=tokenizer,
        threshold=metadata.threshold,
    )


def _in_parts(predict: Predict, rows: int) -> Predict:
    """`predict`, which is then called with at most `rows` rows at a time, read into memory."""

    def in_parts(inputs: npt.NDArray[Any]) -> Predictions:
        starts = range(0, max(1, len(inputs)), rows)
        return np.concatenate([predict(np.array(inputs[start : start + rows])) for start in starts])

    return in_parts


def _tokenizer_in(folder: Path, table: TableSchema | None) -> str:
    """The tokenizer of a model on text, whose digest was checked, as JSON; empty for other models."""
    if table is None or table.text is None:
        return ""
    return (folder / TOKENIZER_FILE).read_text(encoding="utf-8")


class NotDownloadedError(DataError):
    """The files of a version could not be downloaded: they are missing or damaged, or their store can't be used."""


def copy_weights(home: Home, model: str, number: str, target: Path) -> None:
    """Copy the weights for further training that version `number` contains to the file `target`, after its checks.

    The tokenizer of a model on text is copied to `tokenizer.json` beside `target`. Raises :class:`DataError` when the
    files of the version are damaged, or are not what Evergreen registers, and :class:`SettingError` when the version
    contains no such weights.
    """
    with _checked_files(home, model, number) as (folder, model_format, described):
        if tokenizer_digest(described.metadata or {}):
            shutil.copyfile(folder / TOKENIZER_FILE, target.with_name(TOKENIZER))
        file = model_format.WEIGHTS_FILE
        has_weights = file is not None and (folder / file).is_file()
        if file is not None and has_weights:
            shutil.copyfile(folder / file, target)
    if not has_weights:
        raise SettingError(without_weights(model, number))


def check_registered(home: Home, model: str, number: str) -> None:
    """Check the files of version `number` as before loading them, without loading them.

    Raises :class:`DataError` when the files are damaged, or are not what Evergreen registers.
    """
    with _checked_files(home, model, number):
        pass


def without_weights(model: str, number: str) -> str:
    """The error message for a version from whose weights no training can start."""
    return (
        f"training.init_from: model {model} version {number} contains no weights for further training: another "
        "trainer, or an older version of Evergreen, registered it. Name a newer version (version:N) or a .safetensors "
        "file."
    )


@contextmanager
def _checked_files(home: Home, model: str, number: str) -> "Iterator[tuple[Path, ModelFormat, Model]]":
    """Download and check version `number`; yields its folder, its format and the content of its `MLmodel`.

    The folder is removed after the block. Errors of the block say that the version can't be loaded.
    """
    import mlflow.artifacts
    from mlflow.models import Model

    os.environ |= NO_PICKLE
    name = f"model {model} version {number}"
    with temporary_folder("model") as aside:
        with _load_errors_explained(name, EvergreenError, otherwise=NotDownloadedError):
            tags = _tags(model, number)
            folder = Path(
                mlflow.artifacts.download_artifacts(f"models:/{model}/{number}", dst_path=str(aside))
            )
        # Only these two types: MLflow reports every local failure as an internal error, which
        # :func:`training.errors.classify` would treat as a transient error of a server.
        with _load_errors_explained(name, DataError, ResourceError):
            model_format = check_files(folder, name, tags)
            described = Model.load(str(folder))
            _check_own(home, model, number, folder, model_format, described.metadata or {})
            yield folder, model_format, described


def _outputs(signature: "ModelSignature | None") -> int:
    """Number of values that a model predicts for a row: 1 for predictions of shape (rows,)."""
    if signature is None or signature.outputs is None or not signature.outputs.is_tensor_spec():
        return 1
    return int(math.prod(signature.outputs.inputs[0].shape[1:]))


class _Metadata(NamedTuple):
    """Content of a version's metadata; earlier Evergreen versions recorded the classes only."""

    problem: ProblemName
    classes: tuple[str, ...]
    table: TableSchema | None
    threshold: float | None


def _read_metadata(metadata: Mapping[str, Any] | None) -> _Metadata:
    """Read the metadata that :func:`tasks.model_formats.base.metadata_of` wrote."""
    given = metadata or {}
    table, threshold = given.get("table"), given.get("threshold")
    if threshold is not None and not (isinstance(threshold, float) and 0 < threshold < 1):
        raise DataError(f"its metadata have the threshold {threshold!r}, not a number between 0 and 1")
    return _Metadata(
        given.get("problem", "classification"),
        tuple(map(str, given.get("classes", ()))),
        None if table is None else TableSchema.model_validate(table),
        threshold,
    )


@contextmanager
def _load_errors_explained(
    name: str, *unchanged: type[EvergreenError], otherwise: type[DataError] = DataError
) -> Iterator[None]:
    """Raise errors of the types `unchanged` as they are, a missing library as SettingError, others as `otherwise`."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingError(
            f"{name} is loaded by {error.name}, which is not installed here; install it by "
            f"`{install_command(error.name or '')}`"
        ) from error
    except Exception as error:
        known = classify(error)
        if known is not None and isinstance(known, unchanged):
            raise known from error
        reason = f"{type(error).__name__}: {error}"
        raise otherwise(f"{name} can't be loaded ({reason}). {_remedy(name)}") from error


def registered_inputs(model: str, number: str) -> tuple[tuple[int, ...], ProblemName, TableSchema | None]:
    """(shape of a row, problem, table) of a version, read from its signature and metadata alone.

    `table` is None for images with classes. Raises :class:`SettingError` when the version takes another input, and
    :class:`DataError` when its signature or metadata can't be read.
    """
    import mlflow.models

    name = f"model {model} version {number}"
    with _load_errors_explained(name, EvergreenError):
        info = mlflow.models.get_model_info(f"models:/{model}/{number}")
        metadata = _read_metadata(info.metadata)
    shape = _shape_of_table(metadata.table) or image_shape(info.signature, name)
    return shape, metadata.problem, metadata.table


def _shape_of_table(table: TableSchema | None) -> tuple[int, ...]:
    """(columns,) of a table, (tokens,) of text; empty for images, whose schema describes at most the target."""
    if table is not None and table.text is not None:
        return (table.text.length,)
    return (len(table.columns),) if table is not None and table.columns else ()


def image_shape(signature: "ModelSignature | None", name: str) -> ImageShape:
    """(channels, height, width) of the images that a signature takes.

    Raises :class:`SettingError` when the signature is not a batch of uint8 images in, tensors out.
    """
    if signature is not None and signature.outputs is not None and signature.inputs.is_tensor_spec():
        spec = signature.inputs.inputs[0]
        if len(signature.inputs.inputs) == 1 and len(spec.shape) == 4 and spec.type == np.uint8:
            channels, height, width = map(int, spec.shape[1:])
            return channels, height, width
    raise SettingError(
        f"{name}: its signature is not uint8 images (rows, channels, height, width) to probabilities or numbers. Only "
        "models that Evergreen registered can be scored and compared with; register under another name "
        "(tracking.model), or take one of those."
    )


def digest_of_logged(client: "MlflowClient", model_id: str, file: Path) -> str:
    """sha256 of the file `file` (:class:`ModelFormat`) of a model that was just logged, as MLflow stored it."""
    import mlflow.artifacts

    artifact_uri = f"{client.get_logged_model(model_id).artifact_location}/{file.as_posix()}"
    with temporary_folder("model") as aside:
        return digest_file(Path(mlflow.artifacts.download_artifacts(artifact_uri, dst_path=str(aside))))


def check_files(folder: Path, name: str, tags: Mapping[str, str]) -> ModelFormat:
    """The format of a downloaded model, after checking its files.

    `tags` are those of the version; a digest that an older Evergreen, or another program, did not set is not compared.
    Raises :class:`DataError` when the model contains code, or a file with another digest.
    """
    from mlflow.models import Model

    described = Model.load(str(folder / "MLmodel"))
    flavors: dict[str, dict[str, Any]] = described.flavors
    metadata: dict[str, Any] = described.metadata or {}
    wrong: str | None = f"its flavors are {', '.join(flavors)}"
    model_format = format_in(flavors, metadata)
    if model_format is not None:
        wrong = model_format.find_foreign(folder, flavors, metadata)
    if model_format is None or wrong:
        raise DataError(
            f"{name} is not a model that Evergreen registered: {wrong}. Loading it could run code that comes with "
            f"it, so it is not loaded. {_remedy(name)}"
        )
    if metadata.get("transform", tags.get(TRANSFORM_TAG, "")) != tags.get(TRANSFORM_TAG, ""):
        raise DataError(
            f"{name}: its tag {TRANSFORM_TAG} is not the one that was registered, so it is not known how the model's "
            f"rows are changed before it takes them. {_remedy(name)}"
        )
    if METADATA_TAG in tags and tags[METADATA_TAG] != digest_json(metadata):
        raise DataError(
            f"{name}: the metadata in MLmodel are not those that were registered (their digest differs from the tag "
            f"{METADATA_TAG}), so the model is not loaded. {_remedy(name)}"
        )
    for file, sha256 in _digests_in(tags, model_format).items():
        if not (folder / file).is_file() or digest_file(folder / file) != sha256:
            raise DataError(
                f"{name}: {file} is not the file that was registered (its digest differs), so it is not loaded. "
                f"{_remedy(name)}"
            )
    return model_format


def _digests_in(tags: Mapping[str, str], form: ModelFormat) -> dict[Path, str]:
    """Digests on record of a version's files, by path in its folder."""
    files = {FILE_TAG: form.MODEL_FILE, WEIGHTS_FILE_TAG: form.WEIGHTS_FILE}
    return {file: tags[tag] for tag, file in files.items() if file is not None and tag in tags}


def _check_own(
    home: Home, model: str, number: str, folder: Path, form: ModelFormat, metadata: Mapping[str, Any]
) -> None:
    """Compare files and metadata with the digests that this home stored, if this home registered the version."""
    kept = kept_digests(home, model, number)
    if kept is None:
        return
    changed, weights = "", form.WEIGHTS_FILE
    if kept.model_file != digest_file(folder / form.MODEL_FILE):
        changed = f"{form.MODEL_FILE.name} is not the file"
    elif weights and kept.weights is not None and kept.weights != digest_file(folder / weights):
        changed = f"{weights.name} is not the file"
    elif kept.metadata is not None and kept.metadata != digest_json(metadata):
        changed = "the metadata in MLmodel are not those"
    if changed:
        name = f"model {model} version {number}"
        raise DataError(
            f"{name}: {changed} that this home registered (the digest is not the one in "
            f"{record_of(home, model, number)}), so the version is not loaded. {_remedy(name)} If the registry was "
            "deleted and made again on purpose, remove that record."
        )


def _tags(model: str, number: str) -> dict[str, str]:
    from mlflow import MlflowClient

    tags: dict[str, str] = MlflowClient().get_model_version(model, number).tags
    return tags


def _remedy(name: str) -> str:
    """What to do about a version that is not loaded; `name` is "model MODEL version NUMBER"."""
    model = name.removeprefix("model ").rpartition(" version ")[0]
    return (
        "Restore MLflow's files of the version from a backup. Without a backup, if the version is the champion, put an "
        f"earlier version into service: `evergreen rollback {shlex.quote(model)}`. If no version can be loaded, delete "
        "the alias champion on the model's page in `evergreen ui`: the next run is then compared with no champion."
    )
