"""The columns of a table while its preprocessors are fitted step by step, and their values in the training rows."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.preprocessing.applying import applied
from training.data.tables.encoding import encoded_values, nearest
from training.data.tables.statistics import Moments, moments
from training.data.tables.values import text_of, typed
from training.errors import SettingError
from training.records import ColumnKind, TableColumn, TableSchema
from training.table_records import Equal, MadeColumn, Operation

Numbers = npt.NDArray[np.float64]
ReadColumn = Callable[[TableColumn], Numbers]


@dataclass(frozen=True)
class Feature:
    """A column after some of the steps: the `operations` that compute the column from the data's column `source`.

    `is_standardised`: a network takes the numbers without standardising them, because a step scaled or one-hot encoded
    them.
    """

    name: str
    source: str
    kind: ColumnKind
    operations: tuple[Operation, ...] = ()
    is_standardised: bool = False

    @property
    def is_named_by_value(self) -> bool:
        """Whether a OneHotEncoder created the column, so that its name ends with a value of the training rows."""
        return bool(self.operations) and isinstance(self.operations[-1], Equal)

    def after(
        self, name: str, operation: Operation, kind: ColumnKind, is_standardised: bool = False
    ) -> "Feature":
        """The column, under a new name, that results from applying `operation` to this column."""
        return replace(
            self,
            name=name,
            operations=(*self.operations, operation),
            kind=kind,
            is_standardised=is_standardised,
        )


@dataclass(frozen=True)
class Vector:
    """Columns that Ray's steps handle as one column of vectors: the output of a OneHotEncoder or a Concatenator.

    `by` is the class of the preprocessor that created the vector.
    """

    features: tuple[Feature, ...]
    by: str


class Features:
    """The columns of a table after the steps so far; `read` gives a column's encoded numbers in the training rows.

    If `values_known` is False, `read` gives example numbers: the names of one-hot encoded columns are then not the
    real names, and may repeat.
    """

    def __init__(self, schema: TableSchema, read: ReadColumn, values_known: bool = True) -> None:
        self._schema, self._read, self._values_known = schema, read, values_known
        self._raw = {column.name: column for column in schema.columns}
        self._now: dict[str, Feature | Vector] = {
            column.name: Feature(column.name, column.name, column.kind) for column in schema.columns
        }

    def __iter__(self) -> Iterator[Feature]:
        """The columns in the order in which a model takes them; a vector gives its columns one by one."""
        return (feature for column in self._now.values() for feature in parts_of(column))

    def named(self, name: str) -> Feature | Vector:
        """A column or vector by its name. Raises :class:`SettingError` if there is none."""
        if name == self._schema.target:
            raise SettingError(
                f"column {name!r} is the target, which preprocessors do not change. Remove it."
            )
        if name not in self._now:
            raise SettingError(
                f"the table has no column {name!r} at this step; {nearest(name, list(self._now))} Repair the table, or "
                "take the column out of the step."
            )
        return self._now[name]

    def single(self, name: str) -> Feature:
        """A column by its name. Raises :class:`SettingError` for a vector."""
        column = self.named(name)
        if isinstance(column, Vector):
            raise SettingError(
                f"column {name!r} is a vector, made by {column.by}, and this step takes numbers or text."
            )
        return column

    def replace(self, gone: tuple[str, ...], made: Mapping[str, Feature | Vector]) -> None:
        """Remove the columns and vectors named `gone`, then add `made`; a name that exists keeps its position.

        Raises :class:`SettingError` when two columns would have the same name.
        """
        for name in gone:
            del self._now[name]
        self._now |= made
        named = [feature.name for feature in self if self._values_known or not feature.is_named_by_value]
        for name, count in Counter(named).most_common(1):
            if count > 1:
                raise SettingError(
                    f"two columns would be named {name!r}. Rename one of them by output_columns=[...]."
                )

    def check_free(self, output: str) -> None:
        """Raise :class:`SettingError` if a column, a vector or the target has the name `output`."""
        if output in (*self._now, self._schema.target):
            raise SettingError(f"output column {output!r} exists already. Choose another name for it.")

    def numbers(self, feature: Feature) -> Numbers:
        """The numbers of a column in the training rows, NaN for a missing value."""
        return applied(self._read(self._raw[feature.source]), feature.operations)

    def present(self, feature: Feature) -> Numbers:
        """The numbers of a column without missing values. Raises :class:`SettingError` when all are missing."""
        numbers = self.numbers(feature)
        present = numbers[~np.isnan(numbers)]
        if not len(present):
            raise SettingError(
                f"column {feature.name!r} has no value in the training rows. Remove it from the step, or leave it out "
                "of the table by drop=."
            )
        return present

    def text(self, feature: Feature, value: float) -> str:
        """The value that a number encodes, as text: the category, true or false, or the number itself."""
        if feature.kind == "category":
            return self._raw[feature.source].categories[int(value)]
        return text_of(bool(value)) if feature.kind == "boolean" else text_of(value)

    def number_of(self, feature: Feature, value: bool | float | str) -> float:
        """The number that encodes `value` in a column; a category that is new to the column is added to it.

        Raises :class:`SettingError` when `value` is not of the column's kind.
        """
        array, wrong = typed(pa.array([value]), feature.kind)
        if wrong.any() or array.null_count:
            raise SettingError(
                f"fill_value={value!r} is no value of column {feature.name!r}, a {feature.kind}."
            )
        if feature.kind != "category":
            return float(encoded_values(array, feature.kind)[0])
        raw, text = self._raw[feature.source], str(array[0].as_py())
        if text not in raw.categories:
            counts = (*raw.counts, 0) if raw.counts else ()
            raw = raw.model_copy(update={"categories": (*raw.categories, text), "counts": counts})
            self._raw[raw.name] = raw
        return float(raw.categories.index(text))

    def described(self, feature: Feature) -> TableColumn:
        """The record of a model's column, with statistics over the training rows.

        A column without operations keeps the statistics of the data's column. A column that `is_standardised` has
        mean 0 and deviation 1, so that a network does not standardise it again.
        """
        raw = self._raw[feature.source]
        if not feature.operations:
            return raw.model_copy(update={"name": feature.name})
        numbers = self.numbers(feature)
        missing = int(np.isnan(numbers).sum())
        if feature.kind == "category":
            codes = numbers[~np.isnan(numbers)].astype(np.int64)
            counts = np.bincount(codes, minlength=len(raw.categories)).tolist()
            return raw.model_copy(update={"name": feature.name, "missing": missing, "counts": tuple(counts)})
        if feature.is_standardised:
            present = numbers[~np.isnan(numbers)]
            column_moments = Moments(0.0, 1.0, float(present.min()), float(present.max()))
        else:
            column_moments = moments([numbers])
        return TableColumn(name=feature.name, kind=feature.kind, missing=missing, **column_moments._asdict())

    def raw(self) -> tuple[TableColumn, ...]:
        """The columns of the data, with the categories that the steps added."""
        return tuple(self._raw.values())

    def made(self) -> tuple[MadeColumn, ...]:
        """How each column is computed from a column of the data."""
        return tuple(MadeColumn(source=feature.source, operations=feature.operations) for feature in self)


def parts_of(column: Feature | Vector) -> tuple[Feature, ...]:
    """The columns of a vector, or the column itself."""
    return (column,) if isinstance(column, Feature) else column.features
