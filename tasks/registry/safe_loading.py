"""In: a registered version. Out: the model, loaded by plain MLflow from files that can't run code.

Other people may write to a registry. Loading a model can run their code: MLflow imports the modules that a model's
`MLmodel` names, puts folders of the model on Python's path and unpickles files, and torch evaluates strings of the
program. A model that would use any of these is refused before a loader opens its files. The program's digest must
also match the digests recorded at registration: in the registry's tag, and in the home that registered the version.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.model_formats.program import check_program
from tasks.registry.own_digests import kept_digest, record_of
from tasks.trackers.mlflow_store import NO_PICKLE
from training.errors import DataError, EvergreenError, ResourceError, SettingError, classify
from training.records import ImageShape
from training.storage.files import digest_file, temporary_folder
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.models import ModelSignature
    from mlflow.pyfunc import PyFuncModel

FILE_TAG = "evergreen.model_file"  # sha256 of the exported program
WEIGHTS_FILE_TAG = "evergreen.weights_file"  # sha256 of the weights file, for further training
_LOADER = "mlflow.pytorch"
_PROGRAM = Path("data") / "model.pt2"
_WEIGHTS = Path("extra_files") / "weights.safetensors"
_KEYS = frozenset({"config", "data", "env", "loader_module", "pickle_module_name", "python_version"})


def load_checked(home: Home, model: str, number: str) -> "PyFuncModel":
    """Load version `number` of `model` from the registry that MLflow is configured for, after checking its files.

    Raises :class:`DataError` when the files are damaged, or are not what Evergreen registers.
    """
    import mlflow.artifacts
    import mlflow.pyfunc

    os.environ |= NO_PICKLE
    name = f"model {model} version {number}"
    with temporary_folder("model") as aside:
        with _said_of(name, EvergreenError):
            digests = _digests_on_record(model, number)
            folder = Path(
                mlflow.artifacts.download_artifacts(f"models:/{model}/{number}", dst_path=str(aside))
            )
        # Only these two kinds count here: MLflow reports every local failure as an internal error, which
        # :func:`training.errors.classify` would take for a server's, worth a retry.
        with _said_of(name, DataError, ResourceError):
            check_files(folder, name, digests)
            _check_own(home, model, number, folder)
            loaded: PyFuncModel = mlflow.pyfunc.load_model(str(folder))
            return loaded


@contextmanager
def _said_of(name: str, *believed: type[EvergreenError]) -> Iterator[None]:
    """Raise errors of the kinds `believed` as they are, and all other errors as a DataError (damaged model)."""
    try:
        yield
    except Exception as error:
        known = classify(error)
        if known is not None and isinstance(known, believed):
            raise known from error
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{name} can't be loaded ({reason}). {_remedy(name.split()[1])}") from error


def registered_shape(model: str, number: str) -> ImageShape:
    """(channels, height, width) of the images that a version takes, read from its signature alone.

    Raises :class:`SettingError` when the version takes another input, and :class:`DataError` when its signature can't
    be read.
    """
    import mlflow.models

    name = f"model {model} version {number}"
    with _said_of(name, EvergreenError):
        info = mlflow.models.get_model_info(f"models:/{model}/{number}")
    return image_shape(info.signature, name)


def image_shape(signature: "ModelSignature | None", name: str) -> ImageShape:
    """(channels, height, width) of the images that a signature takes.

    Raises :class:`SettingError` when the signature is not a batch of uint8 images in, probabilities out.
    """
    if signature is not None and signature.outputs is not None and signature.inputs.is_tensor_spec():
        spec = signature.inputs.inputs[0]
        if len(signature.inputs.inputs) == 1 and len(spec.shape) == 4 and spec.type == np.uint8:
            channels, height, width = map(int, spec.shape[1:])
            return channels, height, width
    raise SettingError(
        f"{name}: its signature is not uint8 images (rows, channels, height, width) to probabilities. Only models "
        "that Evergreen registered can be scored and compared with; register under another name (tracking.model), or "
        "take one of those."
    )


def digest_of_logged(client: "MlflowClient", model_id: str) -> str:
    """sha256 of the exported program of a model that was just logged, downloaded from where MLflow stored it."""
    import mlflow.artifacts

    program = f"{client.get_logged_model(model_id).artifact_location}/{_PROGRAM}"
    with temporary_folder("model") as aside:
        return digest_file(Path(mlflow.artifacts.download_artifacts(program, dst_path=str(aside))))


def check_files(folder: Path, name: str, digests: Mapping[Path, str | None]) -> None:
    """Raise :class:`DataError` when a downloaded model contains code, or a file whose digest differs from `digests`.

    `digests` has the expected sha256 by path inside `folder`; None: the digest is not known.
    """
    if (wrong := _foreign(folder)) is not None:
        raise DataError(
            f"{name} is not a model that Evergreen registered: {wrong}. Loading it could run code that comes with "
            "it, so it is not loaded. Register the model by retraining it."
        )
    for file, sha256 in digests.items():
        if sha256 is not None and (not (folder / file).is_file() or digest_file(folder / file) != sha256):
            raise DataError(
                f"{name}: {file} is not the file that was registered (its digest differs), so it is not loaded. "
                f"{_remedy(name.split()[1])}"
            )


def _check_own(home: Home, model: str, number: str, folder: Path) -> None:
    """Compare the program with the digest that this home stored, if this home registered the version."""
    kept = kept_digest(home, model, number)
    if kept is not None and digest_file(folder / _PROGRAM) != kept:
        raise DataError(
            f"model {model} version {number}: {_PROGRAM} is not the file that this home registered (its digest is "
            f"not the one in {record_of(home, model, number)}), so it is not loaded. {_remedy(model)} If the "
            "registry was deleted and made again on purpose, remove that record."
        )


def _foreign(folder: Path) -> str | None:
    """The first thing in a model that Evergreen would not have written, as text, or None."""
    from mlflow.models import Model

    flavors: dict[str, dict[str, Any]] = Model.load(str(folder / "MLmodel")).flavors
    if set(flavors) != {"python_function", "pytorch"}:
        return f"its flavors are {', '.join(flavors)}"
    function = flavors["python_function"]
    if function.get("loader_module") != _LOADER or function.get("data") != _PROGRAM.parent.name:
        return f"it is loaded by {function.get('loader_module')} from {function.get('data')}"
    if extra := {key for key, value in function.items() if value} - _KEYS:
        return f"python_function has {', '.join(sorted(extra))}"
    if flavors["pytorch"].get("code"):
        return "it brings code"
    if flavors["pytorch"].get("extra_files") not in (None, [], [{"path": str(_WEIGHTS)}]):
        return f"it names other extra files than {_WEIGHTS}"
    for expected in (_PROGRAM, _WEIGHTS):
        found = sorted(path.name for path in (folder / expected.parent).glob("*"))
        if found != [expected.name] and not (expected == _WEIGHTS and not found):
            return f"{expected.parent} holds {', '.join(found)}"
    if (folder / _WEIGHTS).is_symlink() or (folder / _WEIGHTS.parent).is_symlink():
        return f"{_WEIGHTS} is no regular file"
    program = folder / _PROGRAM
    if program.is_symlink() or not program.is_file():
        return f"{_PROGRAM} is no regular file"
    try:
        check_program(program)
    except DataError as error:
        return f"{_PROGRAM}: {error}"
    return None


def _digests_on_record(model: str, number: str) -> dict[Path, str | None]:
    """Digests by file from the tags of a version; None where an older Evergreen, or another program, set no tag."""
    from mlflow import MlflowClient

    tags: dict[str, str] = MlflowClient().get_model_version(model, number).tags
    return {_PROGRAM: tags.get(FILE_TAG), _WEIGHTS: tags.get(WEIGHTS_FILE_TAG)}


def _remedy(model: str) -> str:
    return f"Point the alias to a version that can be: `evergreen rollback {model}`."
