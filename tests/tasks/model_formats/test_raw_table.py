"""The encoding that goes with a registered model has the bits of Evergreen's own encoding, for all kinds of values."""

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tasks.model_formats import raw_table
from tasks.model_formats.raw_table import Column, encoded
from tasks.model_formats.table_models import (
    EARLIER,
    KNOWN_OF_COLUMN,
    KNOWN_OF_TABLE,
    code_name,
    columns_text,
)
from training.data.preprocessing.applying import model_inputs
from training.data.tables.encoding import encode, typed_rows
from training.errors import SettingError
from training.records import ColumnKind, TableColumn, TableSchema
from training.storage.files import digest_file
from training.table_records import Equal, Fill, MadeColumn, Operation, Position, Preprocessing, Scale

SOURCE = Path(raw_table.__file__)
# sha256 of each version of the file, the present one last. Entries stay: models with that code are registered.
VERSIONS = (
    "e4d9986b8fd85f58547c42e55d40409503c9472f71549bafff2a24daa0e18c35",
    "043f750282296c117f86988fc5b7292bc4d4ac5bc4ab09368228c7a1d59d215f",
    "4b047ee7d32a7fde90d908dece00af12948a39e236c5e81aeb1336b3352236e8",
    "e1293b88f19beafe960afd69a96e42d8315f2cafdb5eee22ef98f1406b22c302",
    "e8e38f6d192cf11fb08adc38bf905c140cbbd4f0da7024308ac88e35b2a46fc6",
    "5fc7c0946b752501ed0ff34740986a29eef6efb8a4d5aa6311a974599b962df5",
)
CATEGORIES = ("-1", "0.5", "1", "10115", "2024-01-01", "Köln", "false", "mañana", "true", "日本")
WORDS = ("true", "False", "YES", "no", "t", "F", "1", "0", "y", "N")
SPACES = st.sampled_from(["", " ", "\t", "\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}\n"])
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20) | st.just(10115)
FLOATS = st.floats(width=64) | st.floats(width=32) | st.sampled_from([0.5, -1.0, 1.0, 0.0, 3.5e38, 10115.0])
MOMENTS = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2250, 1, 1))
ZONES = st.sampled_from(["", "Z", "+01:00", "-0530", "+14"])


def spaced(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(SPACES, texts, SPACES).map("".join)


def moment_text(moment: datetime.datetime, form: str, zone: str) -> str:
    day = moment.strftime("%Y-%m-%d").rjust(10, "0")
    return day if form == "day" else f"{day}{form}{moment.strftime('%H:%M:%S.%f')}{zone}"


MOMENT_TEXTS = st.builds(moment_text, MOMENTS, st.sampled_from(["day", "T", " "]), ZONES)
TEXTS = spaced(
    st.sampled_from(
        [*CATEGORIES, *WORDS, "", "2023-02-30", "1e400", "+1.", ".5e-1", "1_000", "inf", "nan", "٣"]
    )
    | FLOATS.map(repr)
    | INTEGERS.map(str)
    | MOMENT_TEXTS
    | st.text(max_size=5)
)


def series(values: st.SearchStrategy[Any], dtype: Any) -> st.SearchStrategy["pd.Series[Any]"]:
    return st.lists(values, min_size=1, max_size=8).map(lambda drawn: pd.Series(drawn, dtype=dtype))


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values | st.none()


SERIES = st.one_of(
    series(optional(TEXTS), "str"),
    series(optional(TEXTS), object),
    series(optional(TEXTS), "category"),
    series(INTEGERS, "int64"),
    series(st.integers(0, 2**64 - 1), "uint64"),
    series(st.integers(-128, 127), "int8"),
    series(optional(INTEGERS), "Int64"),
    series(FLOATS, "float64"),
    series(st.floats(width=32), "float32"),
    series(optional(st.sampled_from([0.0, 1.0, 0.5])), "Float64"),
    series(optional(st.decimals(-1000, 1000, places=3)), object),
    series(optional(st.decimals(-1000, 1000, places=1)), object),
    series(st.booleans(), "bool"),
    series(optional(st.booleans()), "boolean"),
    series(optional(st.booleans()), object),
    series(optional(MOMENTS), "datetime64[us]"),
    series(optional(MOMENTS), "datetime64[ns]"),
    series(optional(MOMENTS), "datetime64[s]"),
    series(optional(MOMENTS), "datetime64[us, Europe/Berlin]"),
    series(optional(MOMENTS.map(lambda moment: moment.date())), object),
    series(st.none(), object),
)


def columns_of(kind: ColumnKind) -> tuple[TableSchema, list[Column]]:
    categories = CATEGORIES if kind == "category" else ()
    schema = TableSchema(target="y", columns=(TableColumn(name="x", kind=kind, categories=categories),))
    return schema, [{"name": "x", "kind": kind, "categories": list(categories)}]


@pytest.mark.parametrize("kind", ["number", "category", "boolean", "date"])
@given(values=SERIES)
def test_both_encodings_have_the_same_bits_and_refuse_the_same_values(
    kind: ColumnKind, values: "pd.Series[Any]"
) -> None:
    schema, columns = columns_of(kind)
    rows = pd.DataFrame({"x": values})
    wanted = typed_rows(pa.table({"x": pa.array(values, from_pandas=True)}), schema)
    wrong = [number for number, error in enumerate(wanted.errors, 1) if error]
    if wrong:
        with pytest.raises(ValueError, match=rf"^row {wrong[0]}: column 'x' has .*, not (a|t)"):
            encoded(rows, columns)
    else:
        model_encoding, ours = encoded(rows, columns), encode(wanted.rows, schema)
        assert (model_encoding.dtype, model_encoding.shape) == (ours.dtype, ours.shape)
        assert np.array_equal(model_encoding, ours, equal_nan=True), (model_encoding.tolist(), ours.tolist())


NUMBERS = st.integers(-2, 11).map(float) | st.floats(-1e6, 1e6)
FILLS = st.integers(0, 9).map(lambda value: Fill(value=value))
OPERATIONS = st.one_of(
    FILLS,
    st.builds(Scale, shift=NUMBERS, divisor=st.just(0.0) | st.floats(1e-3, 1e6)),
    st.builds(Position, values=st.lists(NUMBERS, min_size=1, max_size=4, unique=True)),
    st.builds(Equal, value=NUMBERS),
)


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["number", "category", "boolean", "date"])
@given(values=SERIES, operations=st.lists(OPERATIONS, max_size=4), fill=FILLS)
def test_preprocessing_has_the_same_bits(
    kind: ColumnKind, values: "pd.Series[Any]", operations: list[Operation], fill: Fill
) -> None:
    raw, columns = columns_of(kind)
    wanted = typed_rows(pa.table({"x": pa.array(values, from_pandas=True)}), raw)
    assume(not any(wanted.errors))
    made = [MadeColumn(source="x", operations=tuple(steps)) for steps in (operations, [fill])]
    schema = raw.model_copy(
        update={
            "columns": (TableColumn(name="a", kind="number"), TableColumn(name="b", kind=kind)),
            "preprocessing": Preprocessing(declared=(), columns=raw.columns, made=tuple(made)),
        }
    )
    described = json.loads(columns_text(schema, "xgboost"))
    assert described["columns"] == columns
    model_encoding, ours = (
        encoded(pd.DataFrame({"x": values}), columns, described["made"]),
        model_inputs(wanted.rows, schema),
    )
    assert (model_encoding.dtype, model_encoding.shape) == (ours.dtype, ours.shape)
    assert np.array_equal(model_encoding, ours, equal_nan=True), (model_encoding.tolist(), ours.tolist())


def test_a_scaled_number_beyond_32_bits_is_the_largest_number_of_32_bits() -> None:
    """XGBoost refuses infinite numbers in training."""
    import xgboost

    raw, columns = columns_of("number")
    made = (MadeColumn(source="x", operations=(Scale(shift=0.0, divisor=0.5),)),)
    schema = raw.model_copy(
        update={
            "columns": (TableColumn(name="a", kind="number"),),
            "preprocessing": Preprocessing(declared=(), columns=raw.columns, made=made),
        }
    )
    rows = pd.DataFrame({"x": [-3.4e38, 3.4e38, 0.25, None]})
    ours = model_inputs(typed_rows(pa.table({"x": pa.array(rows["x"], from_pandas=True)}), raw).rows, schema)
    largest = np.finfo(np.float32).max
    assert np.array_equal(ours[:, 0], np.array([-largest, largest, 0.5, np.nan], np.float32), equal_nan=True)
    theirs = encoded(rows, columns, json.loads(columns_text(schema, "xgboost"))["made"])
    assert ours.tobytes() == theirs.tobytes()
    data = xgboost.QuantileDMatrix(ours, np.arange(4.0))
    model = xgboost.train({"min_child_weight": 0}, data, num_boost_round=2)
    assert np.isfinite(model.inplace_predict(ours)).all()


def test_a_decimal_is_the_same_category_in_both() -> None:
    values = pd.Series([Decimal("2.3"), Decimal("0.7")], dtype=object)
    raw, columns = columns_of("number")
    made = tuple(MadeColumn(source="x", operations=(Equal(value=value),)) for value in (2.3, 0.7))
    schema = raw.model_copy(
        update={
            "columns": (TableColumn(name="a", kind="boolean"), TableColumn(name="b", kind="boolean")),
            "preprocessing": Preprocessing(declared=(), columns=raw.columns, made=made),
        }
    )
    described = json.loads(columns_text(schema, "xgboost"))
    ours = model_inputs(typed_rows(pa.table({"x": pa.array(values)}), raw).rows, schema)
    assert ours.tolist() == encoded(pd.DataFrame({"x": values}), columns, described["made"]).tolist()
    assert ours.tolist() == [[1, 0], [0, 1]]


def test_a_model_without_preprocessing_has_the_files_of_the_release_before() -> None:
    schema, _ = columns_of("number")
    assert list(json.loads(columns_text(schema, "xgboost"))) == ["encoding", "flavor", "columns"]
    assert "preprocessing" not in schema.model_dump(mode="json", exclude={"given"})


def test_each_kind_of_value_has_its_number() -> None:
    """By numbers that were computed by hand."""
    kinds: dict[str, ColumnKind] = {"size": "number", "city": "category", "new": "boolean", "day": "date"}
    columns: list[Column] = [
        {"name": name, "kind": kind, "categories": ["Bonn", "Köln"] if kind == "category" else []}
        for name, kind in kinds.items()
    ]
    rows = pd.DataFrame(
        {
            "more": [1, 2, 3],
            "day": ["1970-01-02", "1969-12-31T12:00:00Z", None],
            "new": [True, "no", None],
            "city": ["Köln", "Ulm", None],
            "size": [Decimal("1.5"), " -2e3 ", np.nan],
        }
    )
    nan = float("nan")
    wanted = [[1.5, 1, 1, 1], [-2000, nan, 0, -0.5], [nan, nan, nan, nan]]
    assert np.array_equal(encoded(rows, columns), np.array(wanted, np.float32), equal_nan=True)


def test_columns_of_arrow_in_pandas_are_read_as_others() -> None:
    columns: list[Column] = [
        {"name": "size", "kind": "number", "categories": []},
        {"name": "day", "kind": "date", "categories": []},
        {"name": "time", "kind": "date", "categories": []},
    ]
    moment = datetime.datetime(1970, 1, 2, 12, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "size": pa.array([1.5, np.nan, None]),
            "day": pa.array([datetime.date(1970, 1, 3), None, datetime.date(1970, 1, 1)]),
            "time": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
        }
    )
    nan = float("nan")
    wanted = np.array([[1.5, 2, 1.5], [nan, nan, nan], [nan, 0, 1.5]], np.float32)
    for rows in (table.to_pandas(), table.to_pandas(types_mapper=pd.ArrowDtype)):
        assert np.array_equal(encoded(rows, columns), wanted, equal_nan=True)


def test_every_field_of_a_table_is_either_known_or_refused() -> None:
    """A new field may change what a model takes. Teach `raw_table.py` to apply the field, or list it as known."""
    schema, _ = columns_of("category")
    assert TableColumn.model_fields.keys() == KNOWN_OF_COLUMN
    assert TableSchema.model_fields.keys() == KNOWN_OF_TABLE | {"text"}  # a model on text takes token ids

    class Imputed(TableColumn):
        imputed: float = 0.0

    columns_text(schema, "xgboost")
    changed = schema.model_copy(update={"columns": (Imputed(name="x", kind="number", imputed=3.0),)})
    with pytest.raises(SettingError, match="does not apply imputed"):
        columns_text(changed, "xgboost")


def test_the_digest_of_the_code_names_its_module() -> None:
    """Two copies in one process must be two modules."""
    digest = digest_file(SOURCE)
    assert code_name(digest) == f"evergreen_table_{digest[:12]}"


def test_every_earlier_version_of_the_code_is_trusted() -> None:
    """Otherwise models that were registered with an earlier version of the file would no longer load."""
    digest = digest_file(SOURCE)
    assert digest == VERSIONS[-1], (
        f"{SOURCE.name} has changed. In this file, append {digest!r} to VERSIONS; in table_models.py, add "
        f"{VERSIONS[-1]!r}, the digest of the file before the change, to EARLIER. A change of the encoding also needs "
        "another number ENCODING in both files."
    )
    assert frozenset(VERSIONS[:-1]) == EARLIER, (
        "EARLIER of table_models.py is not VERSIONS without its last entry"
    )


def test_a_missing_or_repeated_column_is_named() -> None:
    _, columns = columns_of("number")
    with pytest.raises(ValueError, match="exactly one column 'x'"):
        encoded(pd.DataFrame({"y": [1]}), columns)
    with pytest.raises(ValueError, match="exactly one column 'x'"):
        encoded(pd.DataFrame([[1, 2]], columns=["x", "x"]), columns)
