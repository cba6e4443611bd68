"""Open Parquet files that others wrote. No column of such a file may hold Python objects."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from training.data.sources.unchanged import gone_named
from training.errors import DataError

_READ_BYTES = 64 << 20
# Extension types of Ray Data whose values are arrays of numbers. Their metadata is read as JSON.
_RAY_TENSORS = ("ray.data.arrow_tensor", "ray.data.arrow_variable_shaped_tensor")


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn an error of Arrow in the block into a :class:`DataError` that names `file`."""
    try:
        yield
    except MemoryError:  # Arrow's own is an ArrowException, too
        raise
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(f"{file}: not a whole Parquet file ({error}). Write or fetch it again.") from error
    except (ValueError, TypeError) as error:  # raised by Ray's column types, if Ray is imported
        raise DataError(
            f"{file}: a column is of a type that can't be read ({error}). Write it again, with plain columns."
        ) from error


@contextmanager
def open_parquet(file: Path, **options: Any) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; `options` are those of `pyarrow.parquet.ParquetFile`.

    Raises :class:`DataError` that names `file` for a file that is gone, is not Parquet or is damaged, also if Arrow
    finds the damage in the block, and for a column that :func:`check_types` refuses.
    """
    with gone_named(file), readable(file), pq.ParquetFile(file, **options) as parquet:
        check_types(file, parquet.schema_arrow)
        yield parquet


def read_types(file: Path) -> pa.Schema:
    """The columns of a Parquet file with their types. Raises :class:`DataError` as :func:`open_parquet` does."""
    with open_parquet(file) as parquet:
        return parquet.schema_arrow


def rows_to_read(parquet: pq.ParquetFile, group: int, column: str, most: int) -> int:
    """Rows of a row group to read at once: at most `most`, and about 64 MiB of the column by its mean size."""
    described = parquet.metadata.row_group(group)
    parts = (described.column(number) for number in range(described.num_columns))
    size: int = sum(
        part.total_uncompressed_size for part in parts if f"{part.path_in_schema}.".startswith(f"{column}.")
    )
    return max(1, min(most, _READ_BYTES * int(described.num_rows) // max(1, size)))


def check_types(file: Path, schema: pa.Schema) -> None:
    """Raise :class:`DataError` for a column of a type that is defined in Python, also inside a list or a struct.

    Such a type may run code when a value is read: `import ray.data` registers `ray.data.arrow_pickled_object`, which
    unpickles each value. Arrow's own types, and Ray's tensors, read numbers alone.
    """
    for field in schema:
        if (python_type := _python_type(field.type)) is not None:
            raise DataError(
                f"{file}: column {field.name!r} is of type {python_type}, whose values may run code when they are "
                "read. Write the file again, with plain columns."
            )


def _python_type(kind: pa.DataType) -> str | None:
    """Name of a type that Python code reads, in `kind` or inside of it; None if there is no such type."""
    if isinstance(kind, pa.ExtensionType) and not kind.extension_name.startswith(_RAY_TENSORS):
        return str(kind.extension_name)
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    if isinstance(kind, pa.BaseExtensionType):
        inner.append(kind.storage_type)
    if pa.types.is_dictionary(kind):
        inner.append(kind.value_type)
    return next((name for nested in inner if (name := _python_type(nested)) is not None), None)
