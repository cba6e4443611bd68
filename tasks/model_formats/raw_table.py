"""The Python function of a registered model on a table: takes raw columns, encodes them, and predicts.

Evergreen stores a copy of this file in the folder `code` of each model on a table. `mlflow.pyfunc.load_model` imports
the copy, so the model takes raw columns in an environment without Evergreen. This file therefore imports NumPy, pandas
and the library of the model alone. Evergreen runs no copy: :mod:`tasks.registry.safe_loading` loads the model itself.

The file `columns.json` in the model's folder lists the columns and their preprocessing. The matrix has the same bits as
that of :mod:`training.data.preprocessing.applying`, which `tests/tasks/model_formats/test_raw_table.py` compares. After
a change of this file, its digest before the change goes to `EARLIER` in :mod:`tasks.model_formats.table_models`.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pandas as pd  # noqa: TID253 - MLflow imports this file, and it has imported pandas

COLUMNS_FILE = "columns.json"
# Numbers of the rules below, without and with preprocessing; other numbers need another copy of this file.
ENCODING, WITH_PREPROCESSING = 1, 2
_UNKNOWN = -1.0  # an unknown category, until all operations are done
_LARGEST = float(np.finfo(np.float32).max)  # models compute with 32-bit numbers
_US_PER_DAY = 86_400_000_000
_US_PER_MINUTE = 60_000_000
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(
    r"(?P<day>\d{4}-\d{2}-\d{2})"
    r"([T ](?P<hour>\d{2}):(?P<minute>\d{2})(:(?P<second>\d{2})([.,](?P<fraction>\d{1,9}))?)?"
    r"(?P<zone>Z|(?P<sign>[+-])(?P<zone_hour>\d{2})(:?(?P<zone_minute>\d{2}))?)?)?",
    re.ASCII,
)
_BOOLEANS = dict.fromkeys(("true", "yes", "y", "t", "1"), 1.0) | dict.fromkeys(
    ("false", "no", "n", "f", "0"), 0.0
)
_WANTED = {
    "number": "a finite number of 32 bits",
    "boolean": "true or false",
    "date": "a date as 2024-12-31 or 2024-12-31T23:59:59",
    "category": "text",
}
Numbers = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


class Column(TypedDict):
    """A column of `columns.json`. `categories` is empty unless the kind is "category"."""

    name: str
    kind: str
    categories: list[str]


class MadeColumn(TypedDict):
    """A column that preprocessing makes of the column `source`: the operations to apply, in order."""

    source: str
    operations: list[dict[str, Any]]
    kind: str


Made = Sequence[MadeColumn] | None


class TableModel:
    """Predicts from a data frame with raw columns."""

    def __init__(self, columns: Sequence[Column], made: Made, predict: Callable[[Matrix], Matrix]) -> None:
        self._columns, self._made, self._predict = columns, made, predict

    def predict(self, rows: pd.DataFrame) -> Matrix:
        """Probabilities of shape (rows, classes), or numbers of shape (rows,) in the unit of the target.

        Raises :class:`ValueError` for a missing column, and for a value that is not of its column's kind.
        """
        return self._predict(encoded(rows, self._columns, self._made))


def encoded(rows: pd.DataFrame, columns: Sequence[Column], made: Made = None) -> Matrix:
    """The matrix that the model takes, of shape (rows, columns); further columns of `rows` are ignored.

    A category is its position in the column's list, a boolean 0 or 1, and a date the days since 1970-01-01. A missing
    value is NaN, and so is a category that the column's list does not have. With preprocessing, the columns are those
    of `made`. Raises :class:`ValueError` as :meth:`TableModel.predict` does.
    """
    for column in columns:
        if list(rows.columns).count(column["name"]) != 1:
            raise ValueError(
                f"the rows need exactly one column {column['name']!r}, with which the model was trained"
            )
    if made is not None:
        return _preprocessed(rows, columns, made)
    matrix = np.empty((len(rows), len(columns)), np.float32)
    for number, column in enumerate(columns):
        matrix[:, number] = _encoded_column(rows[column["name"]], column)
    return matrix


def _preprocessed(rows: pd.DataFrame, columns: Sequence[Column], made: Sequence[MadeColumn]) -> Matrix:
    start = {one["name"]: _encoded_column(rows[one["name"]], one, _UNKNOWN) for one in columns}
    matrix = np.empty((len(rows), len(made)), np.float32)
    for number, one in enumerate(made):
        values = start[one["source"]]
        for operation in one["operations"]:
            values = _OPERATIONS[operation["does"]](values, operation)
        if one["kind"] == "category":
            values = np.where(values < 0, np.nan, values)
        matrix[:, number] = np.clip(values, -_LARGEST, _LARGEST)
    return matrix


def _fill(values: Numbers, operation: dict[str, Any]) -> Numbers:
    return np.where(np.isnan(values), operation["value"], values)


def _scale(values: Numbers, operation: dict[str, Any]) -> Numbers:
    if operation["divisor"] == 0:
        return np.zeros_like(values)
    return np.asarray((values - operation["shift"]) / operation["divisor"])


def _position(values: Numbers, operation: dict[str, Any]) -> Numbers:
    positions = {value: float(position) for position, value in enumerate(operation["values"])}
    return np.array([positions.get(value, np.nan) for value in values.tolist()], np.float64)


def _equal(values: Numbers, operation: dict[str, Any]) -> Numbers:
    return np.where(values == operation["value"], 1.0, 0.0)


def _encoded_column(values: "pd.Series[Any]", column: Column, unknown: float = np.nan) -> Numbers:
    """The numbers that stand for the values of a column; `unknown` stands for an unknown category."""
    kind = column["kind"]
    if kind == "number" and isinstance(values.dtype, np.dtype) and values.dtype.kind in "iuf":
        numbers = values.to_numpy(np.float64)
        wrong = np.abs(numbers) > _LARGEST  # false for NaN
    elif (
        kind == "date"
        and isinstance(values.dtype, np.dtype | pd.DatetimeTZDtype)
        and values.dtype.kind == "M"
    ):
        return _days(values)
    else:
        numbers, wrong = _one_by_one(values, column, unknown)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"row {row + 1}: column {column['name']!r} has {values.iloc[row]!r}, not {_WANTED[kind]}"
        )
    return numbers


def _days(values: "pd.Series[Any]") -> Numbers:
    """Days since 1970-01-01 of a column of dates, cut to microseconds."""
    if isinstance(values.dtype, pd.DatetimeTZDtype):
        values = values.dt.tz_convert("UTC").dt.tz_localize(None)
    times = values.to_numpy()
    if times.dtype == np.dtype("datetime64[ns]"):
        whole = times.astype(np.int64)
        cut = np.where(whole < 0, -(-whole // 1000), whole // 1000).astype(np.float64)
    else:
        cut = times.astype("datetime64[us]").astype(np.int64).astype(np.float64)
    return np.where(np.isnat(times), np.nan, cut / _US_PER_DAY)


def _one_by_one(values: "pd.Series[Any]", column: Column, unknown: float) -> tuple[Numbers, Mask]:
    """The number of each value, NaN for a missing value, and a mask of the values that are not of the kind."""
    known = {name: float(position) for position, name in enumerate(column["categories"])}
    number_of = _NUMBER_OF[column["kind"]]
    of_text: dict[str, float | None] = {}
    numbers, wrong = np.full(len(values), np.nan), np.zeros(len(values), np.bool_)
    missing = values.isna().tolist()
    for row, value in enumerate(values.tolist()):
        if missing[row] or (isinstance(value, float) and np.isnan(value)):
            continue
        if isinstance(value, str):
            text = value.strip()
            if not text:
                continue
            if text not in of_text:
                of_text[text] = number_of(text, known)
            found = of_text[text]
        else:
            found = number_of(value.item() if isinstance(value, np.generic) else value, known)
        if found is None:
            wrong[row] = True
        else:
            numbers[row] = unknown if np.isnan(found) else found
    return numbers, wrong


def _number(value: Any, _: dict[str, float]) -> float | None:
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return None
    if not isinstance(value, str | int | float | Decimal):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) <= _LARGEST else None


def _boolean(value: Any, _: dict[str, float]) -> float | None:
    if isinstance(value, Decimal):
        value = float(value)
    return None if isinstance(value, date) else _BOOLEANS.get(_text_of(value).lower())


def _date(value: Any, _: dict[str, float]) -> float | None:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, date):
        return float(_us(np.datetime64(value, "us"))) / _US_PER_DAY
    return _date_of_text(value) if isinstance(value, str) else None


def _date_of_text(text: str) -> float | None:
    found = _DATE.fullmatch(text)
    if found is None:
        return None
    part = {name: int(found[name] or 0) for name in ("hour", "minute", "second", "zone_hour", "zone_minute")}
    if (
        part["hour"] > 23
        or part["zone_hour"] > 23
        or max(part["minute"], part["second"], part["zone_minute"]) > 59
    ):
        return None
    try:
        day = np.datetime64(found["day"], "us")
    except ValueError:  # as 2023-02-30
        return None
    fraction = int((found["fraction"] or "0")[:6].ljust(6, "0"))
    zone = (60 * part["zone_hour"] + part["zone_minute"]) * (-1 if found["sign"] == "-" else 1)
    minutes = 60 * part["hour"] + part["minute"] - zone
    return float(_us(day) + minutes * _US_PER_MINUTE + part["second"] * 1_000_000 + fraction) / _US_PER_DAY


def _us(time: np.datetime64) -> int:
    return int(time.astype(np.int64))


def _category(value: Any, known: dict[str, float]) -> float | None:
    return known.get(_text_of(value), np.nan)


def _text_of(value: Any) -> str:
    """A value as the name of a category: whole numbers without decimals, booleans in lower case."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _trees(folder: Path) -> Callable[[Matrix], Matrix]:
    import xgboost

    model = xgboost.Booster(model_file=folder / "model.ubj")

    def predict(inputs: Matrix) -> Matrix:
        return np.asarray(model.inplace_predict(inputs))

    return predict


def _text(folder: Path) -> Callable[[Matrix], Matrix]:
    import lightgbm

    model = lightgbm.Booster(model_file=folder / "model.lgb")

    def predict(inputs: Matrix) -> Matrix:
        return np.asarray(model.predict(np.asarray(inputs, np.float32)), np.float32)

    return predict


def _program(folder: Path) -> Callable[[Matrix], Matrix]:
    import mlflow.pytorch
    import torch

    program = mlflow.pytorch.load_model(str(folder))

    def predict(inputs: Matrix) -> Matrix:
        with torch.no_grad():
            return np.asarray(program(torch.from_numpy(inputs)).numpy())

    return predict


_NUMBER_OF: dict[str, Callable[[Any, dict[str, float]], float | None]] = {
    "number": _number,
    "boolean": _boolean,
    "date": _date,
    "category": _category,
}
_OPERATIONS: dict[str, Callable[[Numbers, dict[str, Any]], Numbers]] = {
    "fill": _fill,
    "scale": _scale,
    "position": _position,
    "equal": _equal,
}
_MODELS = {"xgboost": _trees, "lightgbm": _text, "pytorch": _program}


def _load_pyfunc(folder: str) -> TableModel:
    """Load the model in `folder`; `mlflow.pyfunc.load_model` calls this function."""
    described = json.loads((Path(folder) / COLUMNS_FILE).read_text(encoding="utf-8"))
    if described["encoding"] != (known := WITH_PREPROCESSING if "made" in described else ENCODING):
        raise ValueError(f"{COLUMNS_FILE}: encoding {described['encoding']}, and this code is for {known}")
    return TableModel(described["columns"], described.get("made"), _MODELS[described["flavor"]](Path(folder)))
