"""Convert the files of a table into its typed copy: recognise the columns, check each value, assign splits.

Columns of text without a declared type are read twice: first to recognise their kinds from all values, then to
convert them. The column `time` is read once more, to find the first time of the test split. Memory use is one block
of rows, and with `time` 8 bytes for each row.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.sources.splits import NAMES, NEEDED, TEST, TRAIN, split_named
from training.data.sources.wording import counted
from training.data.tables.encoding import encoded_values, nearest, wrong_value
from training.data.tables.keys import KEY, SeenKeys, key_columns
from training.data.tables.reading import Block, blocks, column_types
from training.data.tables.recognition import Column
from training.data.tables.typed_copy import GROUP, WEIGHT, Notes, group_digests, write_copy
from training.data.tables.values import FEATURE, kind_of, plain, typed
from training.errors import DataError
from training.records import ColumnKind

log = logging.getLogger("evergreen.sources")

_LABEL = "label"
_INDEX = re.compile(r"__index_level_\d+__")  # the name that pandas gives to an index without a name


@dataclass(frozen=True)
class Options:
    """How a table's columns are used; see :class:`training.data.sources.table.Table`."""

    target: str
    drop: tuple[str, ...] = ()
    types: dict[str, ColumnKind] = field(default_factory=dict)
    split: str | None = None
    group: str | None = None
    time: str | None = None
    test_share: float = 0.2
    key: tuple[str, ...] = ()
    weight: str | None = None

    def named(self) -> dict[str, list[str]]:
        """Names of columns by the option of `Table` that gives them."""
        names = ("target", "split", "group", "time", "weight")
        single: dict[str, str | None] = {name: getattr(self, name) for name in names}
        several = {"key": list(self.key), "drop": list(self.drop), "types": list(self.types)}
        return {option: [name] for option, name in single.items() if name is not None} | several


@dataclass(frozen=True)
class _Plan:
    """The files with their splits, the columns to read with their kinds, and the first time of the test split."""

    files: Sequence[tuple[str, Path]]
    options: Options
    features: tuple[str, ...]
    kinds: dict[str, ColumnKind]
    first_test_time: float | None = None


def ingest(
    files: Sequence[tuple[str, Path]],
    options: Options,
    folder: Path,
    check: Callable[[], None] = lambda: None,
) -> Notes:
    """Read the files, each given with its split or "", and write their typed copy to `folder`.

    `check` is called when all rows are written; if `check` raises an error, no copy is kept. Raises
    :class:`DataError`, which names the file, column or row, for data that a table can't have.
    """
    types = {file: column_types(file) for _, file in files}
    names = _agreed_names(types, options)
    _check_named(files[0][1], names, options)
    single = (options.target, options.split, options.group, options.time, options.weight)
    used = {*single, *options.key, *options.drop}
    features = tuple(name for name in names if name not in used)
    if not features:
        raise DataError(
            f"{files[0][1]}: no column is left to learn from besides {_quoted(sorted(filter(None, used)))}."
        )
    if index := next(filter(_INDEX.fullmatch, features), None):
        raise DataError(
            f"{files[0][1]}: column {index!r} is the index of a pandas DataFrame, which says nothing about the rows. "
            f"Write the file again with index=False, or leave the column out with drop=[{index!r}]."
        )
    kinds = _kinds(types, options, features)
    first_test_time, newest = _divide_times(files, options, kinds)
    plan = _Plan(files, options, features, kinds, first_test_time)
    notes = Notes(
        files=tuple(str(file) for _, file in files),
        target=options.target,
        label=kinds[options.target],
        columns={name: kinds[name] for name in features},
        key=options.key,
        weight=options.weight,
        rows={},
        sha256={},
        newest=newest,
        time=None if options.time is None else kinds[options.time],
    )
    write_copy(folder, notes, _converted(plan), check)
    return notes


def _agreed_names(types: dict[Path, dict[str, pa.DataType]], options: Options) -> tuple[str, ...]:
    """Names of the columns: in the order of the files if all have the same order, else sorted."""
    first, *others = types
    dropped = set(options.drop)
    for file in others:
        for base, other in ((first, file), (file, first)):
            if absent := [name for name in types[base] if name not in types[other] and name not in dropped]:
                raise DataError(
                    f"{other}: no column {absent[0]!r}, which {base} has. All files of a table need the same columns; "
                    f"{nearest(absent[0], list(types[other]))}"
                )
    orders = {tuple(name for name in columns if name not in dropped) for columns in types.values()}
    kept = orders.pop() if len(orders) == 1 else tuple(sorted(set(types[first]) - dropped))
    return (*kept, *(name for name in options.drop if any(name in columns for columns in types.values())))


def _check_named(file: Path, names: Sequence[str], options: Options) -> None:
    """Refuse an option that names a column which is not there; of `drop`, only a name in another spelling.

    Otherwise, a column that is left out could not leave the table without ending all later runs.
    """
    spelled = {name.casefold() for name in names}
    for option, columns in options.named().items():
        for name in columns:
            if name in names:
                continue
            if option == "drop" and name.casefold() not in spelled:
                log.warning(
                    "%s: no column %r, which Table(drop=...) names; %s", file, name, nearest(name, names)
                )
                continue
            remedy = " Repair the export, or, if the column is gone for good, take it out of the recipe"
            raise DataError(
                f"{file}: no column {name!r}, which Table({option}=...) names; {nearest(name, names)}{remedy}."
            )


def _kinds(
    types: dict[Path, dict[str, pa.DataType]], options: Options, features: Sequence[str]
) -> dict[str, ColumnKind]:
    """The kind of each column that is read: declared, given by the Arrow types, or recognised from all values."""
    kinds: dict[str, ColumnKind] = {
        name: "category" for name in (options.split, options.group) if name is not None
    }
    kinds |= options.types
    if options.weight is not None:
        kinds[options.weight] = "number"
    wanted = [name for name in (*features, options.target, options.time) if name is not None]
    unknown = []
    for name in wanted:
        kind = _arrow_kind(name, types, name in options.types, name in (options.target, options.time))
        if name not in kinds:
            if kind is None:
                unknown.append(name)
            else:
                kinds[name] = kind
    kinds |= _recognised(list(types), unknown, options)
    if kinds[options.target] == "date":
        raise DataError(
            f"{next(iter(types))}: target {options.target!r} holds dates, which no problem predicts. To predict "
            "them as classes, write them in another form; for a Table, declare "
            f'types={{"{options.target}": "category"}}.'
        )
    if options.time is not None and kinds[options.time] not in ("date", "number"):
        raise DataError(
            f"{next(iter(types))}: time={options.time!r} needs dates or numbers, and the column holds text or booleans."
        )
    return kinds


def _arrow_kind(
    name: str, types: dict[Path, dict[str, pa.DataType]], declared: bool, in_use: bool
) -> ColumnKind | None:
    """The kind of a column by its Arrow types in all files; None for text, and for a column of nulls only.

    Raises :class:`DataError` for a type that tables don't support, and for types of different kinds unless
    `declared`. A column that is `in_use` is no feature, so it can't be left out.
    """
    first_files: dict[ColumnKind, Path] = {}
    for file, columns in types.items():
        if pa.types.is_null(columns[name]):
            continue
        kind = kind_of(columns[name])
        if kind is None:
            remedy = "Write it as one of these"
            if not in_use:
                remedy += f"; for a Table, leave it out with drop=[{name!r}]"
            raise DataError(
                f"{file}: column {name!r} is of type {columns[name]}, and a table has numbers, text, booleans and "
                f"dates. {remedy}."
            )
        first_files.setdefault(kind, file)
    if len(first_files) > 1 and not declared:
        (first_kind, first), (second_kind, second), *_ = first_files.items()
        raise DataError(
            f"{second}: column {name!r} is a {second_kind}, and in {first} a {first_kind}. Write it with one type; "
            f'for a Table, declare types={{"{name}": "{first_kind}"}}.'
        )
    kind = next(iter(first_files), None)
    return None if kind == "category" else kind


def _recognised(files: Sequence[Path], names: Sequence[str], options: Options) -> dict[str, ColumnKind]:
    if not names:
        return {}
    columns = [Column(name) for name in names]
    for file in files:
        for block in blocks(file, names):
            for column in columns:
                column.add(block.rows[column.name], str(file), block.first)
    path = files[0] if len(files) == 1 else files[0].parent
    kinds = {}
    for column in columns:
        try:
            kinds[column.name] = column.recognised(many_allowed=column.name in (options.target, options.time))
        except DataError as error:
            text = str(error)
            raise DataError(text if text.startswith(str(path)) else f"{path}: {text}") from None
    return kinds


def _divide_times(
    files: Sequence[tuple[str, Path]], options: Options, kinds: dict[str, ColumnKind]
) -> tuple[float | None, float | None]:
    """The first time of the test split, so that the latest `test_share` of the rows are in it, and the newest time.

    Rows of equal time stay together: the test split may get more rows, or fewer where it would otherwise get all
    rows.
    """
    if (name := options.time) is None:
        return None, None
    block_times = [
        _times(file, block, name, kinds[name]) for _, file in files for block in blocks(file, [name])
    ]
    times = np.sort(np.concatenate(block_times))
    first = float(times[min(len(times) - 1, len(times) - round(options.test_share * len(times)))])
    if first == times[0]:
        later = times[times > first]
        if not len(later):
            raise DataError(
                f"{files[0][1]}: all rows have the same {name!r}, so time={name!r} can't divide them."
            )
        first = float(later[0])
    return first, float(times[-1])


def _times(file: Path, block: Block, name: str, kind: ColumnKind) -> npt.NDArray[np.float64]:
    """The times of a block's rows: days since 1970 for dates, or the column's numbers."""
    return encoded_values(_values(file, block, name, kind, needed="time"), kind)


def _values(file: Path, block: Block, name: str, kind: ColumnKind, needed: str = "") -> pa.Array:
    """Typed values of a column. Raises :class:`DataError` for a value that is not of the column's kind.

    `needed` is the option of `Table` that does not allow missing values in the column, or "".
    """
    values = plain(block.rows[name])
    made, wrong = typed(values, kind)
    if wrong.any():
        row = int(np.argmax(wrong))
        remedy = " Correct it or leave it empty, or declare another type with types=."
        if needed == "weight":
            remedy = f" weight={name!r} needs a number of at least 0."
        raise DataError(
            f"{file} row {block.first + row}: {wrong_value(name, values[row].as_py(), kind)}{remedy}"
        )
    if needed and made.null_count:
        row = int(np.argmax(np.asarray(made.is_null())))
        raise DataError(
            f"{file} row {block.first + row}: column {name!r} is empty; {needed}={name!r} needs a value."
        )
    return made


def _weights(file: Path, block: Block, name: str) -> pa.Array:
    """The weights of a block's rows. Raises :class:`DataError` for one that is missing or negative."""
    values = _values(file, block, name, "number", needed="weight").cast(pa.float64())
    numbers = values.to_numpy(zero_copy_only=False)
    if (numbers < 0).any():
        row = int(np.argmax(numbers < 0))
        raise DataError(
            f"{file} row {block.first + row}: column {name!r} is {numbers[row]:g}; weight={name!r} needs a number of "
            "at least 0; a row of weight 0 does not count."
        )
    return values


def _converted(plan: _Plan) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Batches of the typed copy, each with the split of its rows."""
    options = plan.options
    others = (options.split, options.group, options.time, options.weight, *options.key)
    extra = [name for name in others if name is not None]
    seen = SeenKeys(options.key)
    for number, (split, file) in enumerate(plan.files):
        for block in blocks(file, list(dict.fromkeys([*plan.features, options.target, *extra]))):
            columns = {
                f"{FEATURE}{name}": _values(file, block, name, plan.kinds[name]) for name in plan.features
            }
            columns[_LABEL] = _values(file, block, options.target, plan.kinds[options.target])
            if options.group is not None:
                columns[GROUP] = group_digests(
                    _values(file, block, options.group, "category", needed="group")
                )
            if options.key:
                columns |= key_columns(file, block, options.key)
                seen.add(file, block, columns[KEY])
            if options.weight is not None:
                columns[WEIGHT] = _weights(file, block, options.weight)
            rows = len(columns[_LABEL])
            columns["file"] = pa.array(np.full(rows, number, np.int32))
            columns["row"] = pa.array(np.arange(block.first, block.first + rows, dtype=np.int64))
            batch = pa.RecordBatch.from_pydict(columns)
            for name, mask in _divided(plan, split, file, block).items():
                if (part := batch.filter(pa.array(mask))).num_rows:
                    yield name, part
    seen.check()


def _divided(plan: _Plan, split: str, file: Path, block: Block) -> dict[str, npt.NDArray[np.bool_]]:
    """Masks of a block's rows by split."""
    options = plan.options
    if options.time is not None and plan.first_test_time is not None:
        test = _times(file, block, options.time, plan.kinds[options.time]) >= plan.first_test_time
        return {TRAIN: ~test, TEST: test}
    if options.split is None:
        return {split: np.ones(block.rows.num_rows, bool)}
    values = _values(file, block, options.split, "category", needed="split").to_pylist()
    for row, value in enumerate(values):
        if not split_named(value):
            raise DataError(
                f"{file} row {block.first + row}: column {options.split!r} has {value!r}; split= needs one of "
                f"{', '.join(NAMES)}."
            )
    splits = np.array([split_named(value) for value in values])
    return {name: splits == name for name in np.unique(splits).tolist()}


def check_divided(origin: str, rows: dict[str, int]) -> None:
    """Raises :class:`DataError` when a source with splits has no rows in the train or in the test split."""
    if missing := [] if "" in rows else [split for split in NEEDED if not rows.get(split)]:
        total = counted(sum(rows.values()), "row")
        raise DataError(
            f"{origin}: none of the {total} belongs to split {missing[0]}. Both train and test need rows."
        )


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
