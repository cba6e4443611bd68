"""Registered models on tables: MLflow's Python function takes raw columns, which a copy of `raw_table.py` encodes.

Beside the model in its own flavor, which takes encoded columns, a model on a table has the folder `code` with that
copy, and the file `columns.json` with the columns' kinds and categories. Models of earlier versions of Evergreen have
neither: the loader of MLflow's flavor loads them, and they take encoded columns.
"""

import json
import shutil
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tasks.model_formats.logged_models import MLFLOW_FILES, log_with_flavor, output_schema, requirements
from training.data.manifest import read_parts
from training.data.preprocessing.applying import model_inputs
from training.data.tables.values import FEATURE
from training.errors import EvergreenError, SettingError, TrainingError
from training.records import DatasetVersion, TableSchema
from training.storage.files import digest_file, temporary_folder
from training.table_records import Preprocessing

if TYPE_CHECKING:
    import pyarrow as pa
    from mlflow.models import Model, ModelSignature

COLUMNS_FILE = "columns.json"
CODE_FOLDER = "code"
RAW_PARTS = (COLUMNS_FILE, CODE_FOLDER)
# sha256 of the files raw_table.py of earlier versions of Evergreen, whose models are trusted as well. After a change of
# the file, tests/tasks/model_formats/test_raw_table.py fails and says which digest to add.
EARLIER: frozenset[str] = frozenset(
    {
        "e4d9986b8fd85f58547c42e55d40409503c9472f71549bafff2a24daa0e18c35",
        "043f750282296c117f86988fc5b7292bc4d4ac5bc4ab09368228c7a1d59d215f",
        "4b047ee7d32a7fde90d908dece00af12948a39e236c5e81aeb1336b3352236e8",
        "e1293b88f19beafe960afd69a96e42d8315f2cafdb5eee22ef98f1406b22c302",
        "e8e38f6d192cf11fb08adc38bf905c140cbbd4f0da7024308ac88e35b2a46fc6",
    }
)

# A file in place of Python's folder for compiled code, so that Python neither stores nor runs compiled code there.
_NO_COMPILED_CODE = "__pycache__"
_NO_COMPILED_CODE_TEXT = (
    b"This file keeps Python from running compiled code in place of the code in this folder.\n"
)
_SOURCE = Path(__file__).with_name("raw_table.py")
_ENCODING, _WITH_PREPROCESSING = 1, 2  # as in raw_table.py
_KEYS = frozenset({CODE_FOLDER, "env", "loader_module", "python_version"})
_EXAMPLE_ROWS = 4
_COMPARED_ROWS = 256
_LONGEST = 64 << 20  # bytes of columns.json
_MOST_ROWS, _MOST_BYTES = 1 << 14, 32 << 20  # of inputs that trees score at once
# All fields of TableColumn and of TableSchema: raw_table.py applies them to the raw columns, or they don't change the
# model's inputs. A table with a further field is refused: raw_table.py would ignore the field, and could encode the
# raw columns to other numbers than in training.
KNOWN_OF_COLUMN = {"name", "kind", "mean", "std", "least", "most", "missing", "categories", "counts"}
# `given` are the columns before a recipe's `transform_rows`; the registered model takes the columns after it.
# `weight` is no column of the model.
KNOWN_OF_TABLE = {
    "target",
    "columns",
    "target_mean",
    "target_std",
    "warnings",
    "given",
    "preprocessing",
    "weight",
}


def rows_of_table(table: TableSchema) -> int:
    """Rows of a table to score at once by trees: those of 32 MiB of inputs, at most 16,384."""
    return max(1, min(_MOST_ROWS, _MOST_BYTES // (4 * max(1, len(table.columns)))))


class Saver(Protocol):
    """A module of MLflow's flavor, or an object in its place."""

    def save_model(self, path: str, **options: Any) -> None:
        """Save a model in the folder `path`, with the arguments of the module's function."""


class TableFlavor:
    """Saves a model on a table twice in one folder: in MLflow's own flavor, and as a Python function of raw columns.

    `Model.log` of MLflow takes this object in place of a module such as `mlflow.xgboost`, and calls its `save_model`.
    The own flavor takes encoded columns (`mlflow.xgboost.load_model`); the Python function takes raw columns
    (`mlflow.pyfunc.load_model`), encodes them by a copy of raw_table.py, and calls the model in the own flavor.

    `flavor` is the name of the own flavor, such as "xgboost", and `inner` is MLflow's module for this flavor;
    `options` are arguments of the `save_model` of `inner`, such as the model. `files` are the files and folders
    written by `inner` that are kept.
    """

    def __init__(
        self, flavor: str, inner: Saver, version: DatasetVersion, files: tuple[str, ...], **options: Any
    ) -> None:
        self._flavor, self._inner, self._version = flavor, inner, version
        self._files, self._options = files, options

    def save_model(
        self,
        path: str,
        mlflow_model: "Model",
        pip_requirements: list[str],
        validate_serving_input: bool,
    ) -> None:
        """Save the model in `path`. Raises :class:`TrainingError` for columns that the copied file can't encode."""
        import mlflow.pyfunc
        from mlflow.models import Model

        assert not validate_serving_input  # MLflow would import the copy into this process
        assert self._version.table is not None
        columns = columns_text(self._version.table, self._flavor)
        rows = _raw_rows(self._version)
        _check_encoding(rows, self._version, columns)
        with temporary_folder("model") as aside:
            own = Model()
            self._inner.save_model(
                path=str(aside / "own"), mlflow_model=own, pip_requirements=pip_requirements, **self._options
            )
            mlflow.pyfunc.save_model(
                path=str(aside / "function"),
                mlflow_model=mlflow_model,
                loader_module=code_name(digest_file(_SOURCE)),
                code_paths=[str(_copied_source(aside))],
                signature=raw_signature(self._version),
                input_example=rows.to_pandas()[:_EXAMPLE_ROWS],
                pip_requirements=pip_requirements,
            )
            folder = Path(path)
            folder.mkdir(parents=True, exist_ok=True)
            # In a project of uv, MLflow adds the project's files to the function's folder: they are not moved.
            for part, names in (("own", self._files), ("function", {CODE_FOLDER, *MLFLOW_FILES})):
                for name in names:
                    if (aside / part / name).exists():
                        shutil.move(aside / part / name, folder / name)
        (folder / CODE_FOLDER / _NO_COMPILED_CODE).write_bytes(_NO_COMPILED_CODE_TEXT)
        (folder / COLUMNS_FILE).write_text(columns, encoding="utf-8")
        mlflow_model.add_flavor(self._flavor, **own.flavors[self._flavor])
        mlflow_model.model_size_bytes = own.model_size_bytes
        mlflow_model.save(str(folder / "MLmodel"))


def log_trees(
    run_id: str,
    version: DatasetVersion,
    flavor: TableFlavor,
    loader: str,
    metadata: dict[str, Any],
    library: str,
) -> str:
    """Log trees of `library`, which MLflow's module `loader` loads; returns the model's URI.

    Raises :class:`TrainingError` when that fails.
    """
    needed = requirements(*packages_distributions()[library], "numpy", "pandas")
    try:
        return log_with_flavor(
            run_id, version, flavor, loader, metadata, pip_requirements=needed, validate_serving_input=False
        )
    except EvergreenError:
        raise
    except Exception as error:
        raise TrainingError(f"the model could not be logged: {type(error).__name__}: {error}") from error


def raw_signature(version: DatasetVersion) -> "ModelSignature":
    """The signature of a model on a table: its raw columns by name, before any preprocessing.

    The columns have the type `any`, because each other type of MLflow accepts one dtype of pandas: MLflow refuses a
    column of int64 for `double`, a category column or a column without values for `string`, and text for `datetime`.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import AnyType

    assert version.table is not None
    inputs = Schema([ColSpec(AnyType(), column.name) for column in version.table.raw.columns])
    return ModelSignature(inputs=inputs, outputs=output_schema(version))


def columns_text(table: TableSchema, flavor: str) -> str:
    """The content of `columns.json` for a model of MLflow's flavor `flavor`.

    Raises :class:`SettingError` for a table with statistics that the copied file does not apply.
    """
    unknown = table.model_dump(exclude_defaults=True).keys() - KNOWN_OF_TABLE
    for column in (*table.columns, *table.raw.columns):
        unknown |= column.model_dump(exclude_defaults=True).keys() - KNOWN_OF_COLUMN
    if unknown:
        raise SettingError(
            f"the registered model would not take raw columns: its code does not apply {', '.join(sorted(unknown))} of "
            "the dataset's columns. Remove the preprocessing that adds them from the recipe."
        )
    columns = [
        {"name": column.name, "kind": column.kind, "categories": list(column.categories)}
        for column in table.raw.columns
    ]
    described = {"encoding": _ENCODING, "flavor": flavor, "columns": columns}
    if table.preprocessing is not None:
        described |= {"encoding": _WITH_PREPROCESSING, "made": _made(table, table.preprocessing)}
    return json.dumps(described, ensure_ascii=False, indent=1) + "\n"


def _made(table: TableSchema, preprocessing: Preprocessing) -> list[dict[str, Any]]:
    """How the copied file computes each column of the model."""
    pairs = zip(table.columns, preprocessing.made, strict=True)
    return [made.model_dump(mode="json") | {"kind": column.kind} for column, made in pairs]


def code_name(sha256: str) -> str:
    """The name of the module in a model's folder `code`, by the digest of its file.

    Python imports a module once for each name, so models with different copies need different names.
    """
    return f"evergreen_table_{sha256[:12]}"


def is_raw(function: Mapping[str, Any]) -> bool:
    """Whether a model claims that its Python function is a copy of raw_table.py, and so takes raw columns.

    `function` is the section `python_function` of the model's `MLmodel` file. :func:`foreign_code` checks the claim.
    Models of earlier versions of Evergreen, and models on images, don't claim this: MLflow's own loader loads them.
    """
    return str(function.get("loader_module")).startswith(code_name(""))


def foreign_code(folder: Path, function: Mapping[str, Any], table: Any, flavor: str) -> str | None:
    """Describe the first thing in the Python function of a model on a table that Evergreen did not write.

    Returns None if there is no such thing. `function` and `table` are from the file `MLmodel`: the section of the
    Python function, and the columns in the metadata.
    """
    if extra := {key for key, value in function.items() if value} - _KEYS:
        return f"python_function has {', '.join(sorted(extra))}"
    name, code = str(function.get("loader_module")), folder / CODE_FOLDER
    if function.get(CODE_FOLDER) != CODE_FOLDER or code.is_symlink() or not code.is_dir():
        return f"it is loaded by {name} from {function.get(CODE_FOLDER)}"
    for path in sorted(code.iterdir()):
        if path.name not in (f"{name}.py", _NO_COMPILED_CODE):
            return f"{CODE_FOLDER} holds {path.name}"
    if _has_compiled_code(code / _NO_COMPILED_CODE):
        return (
            f"{CODE_FOLDER}/{_NO_COMPILED_CODE} can have compiled code, which Python runs in place of the code; remove "
            "this folder from the model's files in the artifact store"
        )
    file = code / f"{name}.py"
    if file.is_symlink() or not file.is_file():
        return f"{CODE_FOLDER}/{file.name} is no regular file"
    sha256 = digest_file(file)
    if sha256 not in {digest_file(_SOURCE), *EARLIER} or name != code_name(sha256):
        return f"{CODE_FOLDER}/{file.name} is not the code of this or an earlier version of Evergreen"
    return _wrong_columns(folder / COLUMNS_FILE, table, flavor)


def _has_compiled_code(path: Path) -> bool:
    """Whether `path` is anything but the file that Evergreen writes; models of earlier versions may lack the file."""
    if not path.is_symlink() and not path.exists():
        return False
    regular = path.is_file() and not path.is_symlink() and path.stat().st_size == len(_NO_COMPILED_CODE_TEXT)
    return not regular or path.read_bytes() != _NO_COMPILED_CODE_TEXT


def _wrong_columns(file: Path, table: Any, flavor: str) -> str | None:
    """What is wrong with `columns.json`, whose content the columns in the metadata determine; None if nothing is."""
    if file.is_symlink() or not file.is_file() or file.stat().st_size > _LONGEST:
        return f"{file.name} is no regular file of at most {_LONGEST >> 20} MiB"
    try:
        schema = TableSchema.model_validate(table)
        wanted = columns_text(schema, flavor)
    except (ValueError, SettingError) as error:
        return f"its metadata describe no table ({error})"
    if any(
        len({column.name for column in table.columns}) < len(table.columns) for table in (schema, schema.raw)
    ):
        return "its metadata have two columns of one name"
    if file.read_bytes() != wanted.encode():
        return f"{file.name} has other columns than the metadata"
    return None


def _copied_source(aside: Path) -> Path:
    file = aside / f"{code_name(digest_file(_SOURCE))}.py"
    file.write_bytes(_SOURCE.read_bytes())
    return file


def _raw_rows(version: DatasetVersion) -> "pa.Table":
    """The features of the first test rows, with the types of part files."""
    assert version.table is not None
    names = [column.name for column in version.table.raw.columns]
    part = next(read_parts(version, "test", [f"{FEATURE}{name}" for name in names]))
    return part.slice(0, _COMPARED_ROWS).rename_columns(names)


def _check_encoding(rows: "pa.Table", version: DatasetVersion, columns: str) -> None:
    """Raise :class:`TrainingError` unless the copied file encodes rows to the bits that the model was trained with."""
    from tasks.model_formats.raw_table import encoded

    assert version.table is not None
    ours = model_inputs(rows, version.table)
    described = json.loads(columns)
    theirs = encoded(rows.to_pandas(), described["columns"], described.get("made"))
    different = np.flatnonzero(((ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs))).any(0))
    if len(different):
        name = version.table.columns[int(different[0])].name
        raise TrainingError(
            f"the registered model would encode the raw values of column {name!r} to other numbers than those it was "
            "trained with. It was not registered; the trained weights are kept."
        )
