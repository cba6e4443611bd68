"""Prepare and unpack dataset versions of tables with preprocessing.

The part files hold the raw columns, as those of a table without preprocessing. The manifest describes the fitted
steps.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from training.code_closure import code_digests
from training.data.dataset import is_validation
from training.data.images.decoding import binary_to_numpy
from training.data.manifest import read_parts, write_manifest
from training.data.preprocessing.applying import model_inputs
from training.data.preprocessing.fitting import check_steps, fitted
from training.data.row_kinds import PREPROCESSING_MODULES
from training.data.tables.encoding import encoded_values
from training.data.tables.statistics import part_columns
from training.data.tables.typed_copy import read_notes
from training.data.tables.unpacking import unpack_table
from training.data.tables.values import FEATURE
from training.errors import SettingError
from training.records import DatasetVersion, SourceFiles, Split, TableColumn
from training.settings.schema import DataSettings
from training.storage.files import atomic_folder, digest_json, remove_folder
from training.table_records import DeclaredStep


def preprocessed_fingerprint(
    plain: str, steps: Sequence[DeclaredStep], files: SourceFiles, settings: DataSettings
) -> str:
    """The fingerprint of a table with preprocessing; `plain` is the fingerprint of the table without preprocessing.

    Raises :class:`SettingError` for a source of images.
    """
    if files.kind != "table":
        raise SettingError(
            f"preprocessors: {files.origin} is no table, and preprocessors change the columns of a table. Remove them; "
            "transform_rows and augmentation change images."
        )
    # With the validation share: the steps are fitted without the validation rows, which that share selects.
    about = [step.model_dump(mode="json", exclude_defaults=True) for step in steps]
    return digest_json([plain, about, settings.validation_share, code_digests(*PREPROCESSING_MODULES)])


def check_declared(steps: Sequence[DeclaredStep], files: SourceFiles) -> None:
    """Raise :class:`SettingError` for a step that can't be applied to the source's columns; reads no rows."""
    notes = read_notes(Path(files.root))
    check_steps(steps, notes.target, notes.columns)


def make_preprocessed_version(
    steps: Sequence[DeclaredStep],
    settings: DataSettings,
    folder: Path,
    make: Callable[[Path], DatasetVersion],
) -> DatasetVersion:
    """Commit the dataset version of a table with preprocessing at `folder`.

    `make` commits the version without preprocessing to the folder that it is given. Raises :class:`SettingError` for
    a step that can't be applied to the columns, and the errors of `make`; after an error, nothing is left at `folder`.
    """
    with atomic_folder(folder) as staging:
        plain = make(staging / "plain")
        table = plain.table
        assert table is not None
        read = _TrainingRows(plain, settings.validation_share)
        schema = fitted(steps, table, read)
        version = plain.model_copy(
            update={"table": schema, "shape": (len(schema.columns),), "path": str(folder)}
        )
        for split in version.parts:
            (Path(plain.path) / split).rename(staging / split)
        remove_folder(Path(plain.path))
        write_manifest(version, staging)
    return version


class _TrainingRows:
    """Reads columns of the train split without validation rows; memory use is two columns.

    The last column is cached, because all columns of a one-hot encoding are computed from one column.
    """

    def __init__(self, version: DatasetVersion, share: float) -> None:
        self._folder, self._parts = Path(version.path), version.parts["train"]
        self._last: tuple[TableColumn, npt.NDArray[np.float64]] | None = None
        self._kept = [self._kept_rows(version, share, part.path) for part in self._parts]

    def _kept_rows(self, version: DatasetVersion, share: float, part: str) -> npt.NDArray[np.bool_]:
        """Mask of the training rows of a part file: all rows except the validation rows."""
        marked = version.validation_rows is not None
        table = pq.read_table(self._folder / part, columns=["validation" if marked else "digest"])
        if marked:
            return ~np.asarray(table["validation"])
        digests = binary_to_numpy(table["digest"], np.uint64).reshape(-1, 2)[:, 0]
        return ~is_validation(digests, share)

    def __call__(self, column: TableColumn) -> npt.NDArray[np.float64]:
        if self._last is None or self._last[0] != column:
            self._last = column, self._read(column)
        return self._last[1]

    def _read(self, column: TableColumn) -> npt.NDArray[np.float64]:
        values = part_columns(self._folder, self._parts, f"{FEATURE}{column.name}")
        numbers = [
            encoded_values(part.filter(pa.array(kept)), column.kind, column)
            for part, kept in zip(values, self._kept, strict=True)
        ]
        return np.concatenate(numbers)


def unpack_preprocessed(version: DatasetVersion, split: Split, folder: Path) -> None:
    """Unpack a split as :func:`training.data.tables.unpacking.unpack_table` does, with preprocessed inputs."""
    schema = version.table
    assert schema is not None
    raw = schema.raw
    # Targets, digests and validation marks are those of the raw table; its `inputs.npy` is overwritten below.
    unpack_table(version.model_copy(update={"table": raw, "shape": (len(raw.columns),)}), split, folder)
    names = [f"{FEATURE}{column.name}" for column in raw.columns]
    with (folder / "inputs.npy").open("wb") as inputs:
        header = {"descr": "<f4", "fortran_order": False, "shape": (version.rows(split), *version.shape)}
        np.lib.format.write_array_header_1_0(inputs, header)
        for table in read_parts(version, split, names):
            inputs.write(np.ascontiguousarray(model_inputs(table, schema, FEATURE), "<f4").data)
