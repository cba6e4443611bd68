"""In: a registered version. Out: the model, loaded by plain MLflow from files that can't run code of their own.

A registry may be written by others. MLflow imports what a model's `MLmodel` names, puts folders of the model on
Python's path and unpickles; so all of that is refused before it begins, and the weights are held against the digest
that was recorded when they were registered.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from training.errors import DataError
from training.files import digest_file

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.pyfunc import PyFuncModel

FILE_TAG = "evergreen.model_file"  # sha256 of the exported program
NO_PICKLE = {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
_LOADER = "mlflow.pytorch"
_PROGRAM = Path("data") / "model.pt2"
_KEYS = frozenset({"config", "data", "env", "loader_module", "pickle_module_name", "python_version"})


def load_checked(model: str, number: str) -> "PyFuncModel":
    """Version `number` of `model` from the registry that MLflow is set to.

    Raises :class:`DataError` when its files are damaged, or not what Evergreen registers.
    """
    import mlflow.artifacts
    import mlflow.pyfunc

    os.environ |= NO_PICKLE
    name = f"model {model} version {number}"
    try:
        with TemporaryDirectory(prefix="evergreen-model-") as aside:
            folder = Path(mlflow.artifacts.download_artifacts(f"models:/{model}/{number}", dst_path=aside))
            check_files(folder, name, _digest_on_record(model, number))
            loaded: PyFuncModel = mlflow.pyfunc.load_model(str(folder))
            return loaded
    except DataError:
        raise
    except Exception as error:  # MLflow, torch and zip readers raise many kinds
        raise DataError(
            f"{name} can't be loaded ({type(error).__name__}: {error}). {_remedy(model)}"
        ) from error


def digest_of_logged(client: "MlflowClient", model_id: str) -> str:
    """sha256 of the exported program of a model that was just logged, as it arrived."""
    import mlflow.artifacts

    program = f"{client.get_logged_model(model_id).artifact_location}/{_PROGRAM}"
    with TemporaryDirectory(prefix="evergreen-model-") as aside:
        return digest_file(Path(mlflow.artifacts.download_artifacts(program, dst_path=aside)))


def check_files(folder: Path, name: str, sha256: str | None) -> None:
    """Refuse a downloaded model that brings code, or other weights than `sha256` says. Raises :class:`DataError`."""
    if (wrong := _foreign(folder)) is not None:
        raise DataError(
            f"{name} is not a model that Evergreen registered: {wrong}. Loading it could run code of its own, so "
            "it is not loaded. Register the model by retraining it."
        )
    if sha256 is not None and digest_file(folder / _PROGRAM) != sha256:
        raise DataError(
            f"{name}: {_PROGRAM} is not the file that was registered (its digest differs), so it is not loaded. "
            f"{_remedy(name.split()[1])}"
        )


def _foreign(folder: Path) -> str | None:
    """What Evergreen would not have written into a model, or None."""
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
    found = sorted(path.name for path in (folder / _PROGRAM.parent).iterdir())
    return None if found == [_PROGRAM.name] else f"{_PROGRAM.parent} holds {', '.join(found)}"


def _digest_on_record(model: str, number: str) -> str | None:
    """None for a version that somebody registered without Evergreen."""
    from mlflow import MlflowClient

    digest: str | None = MlflowClient().get_model_version(model, number).tags.get(FILE_TAG)
    return digest


def _remedy(model: str) -> str:
    return f"Point the alias to a version that can be: `evergreen rollback {model}`."
