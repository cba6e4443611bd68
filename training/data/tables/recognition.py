"""Recognise the kinds of columns from all of their values, or refuse a column that no model can learn from."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.data.sources.wording import counted
from training.data.tables.values import (
    has_decimal_comma,
    is_boolean,
    is_date,
    is_local_date,
    is_number,
    is_text,
    kind_of,
    plain,
)
from training.errors import DataError
from training.records import ColumnKind

log = logging.getLogger("evergreen.prepare")

# A column of text with more than _FREE_DISTINCT distinct values is refused when there are more distinct values than
# _MAX_SHARE of the rows, as in names and free text, or more than _MAX_DISTINCT, as in identifiers.
_FREE_DISTINCT, _MAX_SHARE, _MAX_DISTINCT = 100, 0.5, 10_000
_NEARLY = 0.9  # from this share of numbers (booleans, dates) in a text column, its other values are errors
_MIXED = 0.5  # from this share on, they may be errors, so a warning names the first
# Forms that are text to Evergreen, and what such a column probably holds.
_FOREIGN: tuple[tuple[str, Callable[[pa.Array], pa.Array], str], ...] = (
    ("a number with a comma", has_decimal_comma, "Write numbers with decimal points and without separators"),
    ("a date that is not in ISO 8601", is_local_date, "Write dates as 2024-12-31"),
)
_TESTS: tuple[tuple[ColumnKind, str, Callable[[pa.Array], pa.Array]], ...] = (
    ("number", "numbers", is_number),
    ("boolean", "true or false", is_boolean),
    ("date", "dates", is_date),
)


@dataclass
class Column:
    """Statistics of one column over the rows so far, from which its kind is recognised.

    :attr:`kind` is the kind by the Arrow type, None for text. For text and each other kind, :attr:`matching` counts
    the values of that kind, and :attr:`first_mismatch` has location and value of the first that is not of the kind.
    :attr:`foreign` and :attr:`first_foreign` are the same for values such as `3,14` and `31.12.2024`.
    """

    name: str
    rows: int = 0
    present: int = 0
    kind: ColumnKind | None = None
    distinct: set[str] = field(default_factory=set)
    matching: dict[str, int] = field(default_factory=dict)
    first_mismatch: dict[str, tuple[str, Any]] = field(default_factory=dict)
    foreign: dict[str, int] = field(default_factory=dict)
    first_foreign: dict[str, tuple[str, Any]] = field(default_factory=dict)

    def add(self, values: pa.Array, origin: str, first: int) -> None:
        """Add the values of consecutive rows of the file `origin`, from row number `first` on."""
        array = plain(values)
        self.rows += len(array)
        self.present += len(array) - array.null_count
        if not is_text(array.type):
            self.kind = kind_of(array.type)
            return
        coded = array.dictionary_encode()
        words = coded.dictionary
        if len(self.distinct) <= _MAX_DISTINCT:
            self.distinct.update(words.slice(0, 2 * _MAX_DISTINCT).to_pylist())
        codes = coded.indices.drop_null().to_numpy()
        uses = np.bincount(codes, minlength=len(words)) if len(words) else np.zeros(0, np.int64)
        for kind, _, test in _TESTS:
            good = np.asarray(test(words).cast(pa.bool_()), dtype=bool)
            self.matching[kind] = self.matching.get(kind, 0) + int(uses[good].sum())
            if kind not in self.first_mismatch and not good.all():
                is_other = pc.is_in(array, value_set=words.filter(pa.array(~good)))
                row = int(np.flatnonzero(np.asarray(is_other))[0])
                self.first_mismatch[kind] = (f"{origin} row {first + row}", array[row].as_py())
        for form, test, _ in _FOREIGN:
            matches = np.asarray(test(words), dtype=bool)
            if matches.any():
                self.foreign[form] = self.foreign.get(form, 0) + int(uses[matches].sum())
                row = int(
                    np.flatnonzero(np.asarray(pc.is_in(array, value_set=words.filter(pa.array(matches)))))[0]
                )
                self.first_foreign.setdefault(form, (f"{origin} row {first + row}", array[row].as_py()))

    def recognised(self, many_allowed: bool = False) -> ColumnKind:
        """The kind of the column.

        Warns of a column of categories of which at least half of the values are numbers, booleans or dates. Raises
        :class:`DataError` for a column without values, for text of which at least 90 % but not all values are numbers,
        booleans or dates, or of which at least 90 % are numbers with a comma or dates in another form, and, unless
        `many_allowed`, for text with too many distinct values.
        """
        name = self.name
        if self.kind is not None:
            return self.kind
        if not self.present:
            raise DataError(
                f"column {name!r} has no values in {counted(self.rows, 'row')}, so its type is unknown. Write its "
                f'values; for a Table, leave it out with drop=["{name}"], or declare types={{"{name}": "number"}}.'
            )
        for kind, spelled, _ in _TESTS:
            share = self.matching.get(kind, 0) / self.present
            if share == 1:
                return kind
            if share >= _NEARLY:
                where, value = self.first_mismatch[kind]
                raise DataError(
                    f"{where}: column {name!r} has {value!r}, and {self.matching[kind]:,} of "
                    f"{counted(self.present, 'value')} of the column are {spelled}. Correct the others or leave them "
                    f'empty; for a Table, types={{"{name}": "category"}} reads all of them as text.'
                )
        if not many_allowed:
            self._check_foreign()
            self._check_distinct()
        self._warn_if_mixed()
        return "category"

    def _check_foreign(self) -> None:
        for form, _, remedy in _FOREIGN:
            count = self.foreign.get(form, 0)
            # Of numbers with commas, those without a fraction are plain numbers.
            plain_numbers = self.matching.get("number", 0) if form == _FOREIGN[0][0] else 0
            if count and count + plain_numbers >= _NEARLY * self.present:
                where, value = self.first_foreign[form]
                raise DataError(
                    f"{where}: column {self.name!r} has {value!r}, {form}, and {count + plain_numbers:,} of "
                    f"{counted(self.present, 'value')} of the column are of this form"
                    f"{' or numbers' if plain_numbers else ''}. {remedy}, or declare "
                    f'types={{"{self.name}": "category"}}.'
                )

    def _warn_if_mixed(self) -> None:
        for kind, spelled, _ in _TESTS:
            if self.matching.get(kind, 0) >= _MIXED * self.present:
                where, value = self.first_mismatch[kind]
                log.warning(
                    "%s: column %r has %r, so its values are categories, although %d of %s are %s. If the column "
                    'should have the kind "%s", correct the other values or leave them empty; otherwise, for a '
                    'Table, declare types={"%s": "category"}.',
                    where, self.name, value, self.matching[kind], counted(self.present, "value"), spelled, kind,
                    self.name,
                )  # fmt: skip
                return

    def _check_distinct(self) -> None:
        distinct = len(self.distinct)
        if has_too_many(distinct, self.rows):
            shown = f"more than {_MAX_DISTINCT:,}" if distinct > _MAX_DISTINCT else f"{distinct:,}"
            raise DataError(
                f"column {self.name!r} has {shown} distinct texts in {counted(self.rows, 'row')}, as names, "
                f"identifiers and free text have: a model can't learn from it. Leave it out with drop=[{self.name!r}], "
                f'or declare types={{"{self.name}": "category"}}. (The limits are {_FREE_DISTINCT} texts, if they are '
                f"more than half of the rows, and {_MAX_DISTINCT:,} texts.)"
            )


def has_too_many(distinct: int, rows: int) -> bool:
    """Whether a column has too many distinct values to be categories or classes."""
    return distinct > _FREE_DISTINCT and (distinct > _MAX_SHARE * rows or distinct > _MAX_DISTINCT)
