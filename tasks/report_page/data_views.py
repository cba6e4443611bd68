"""How the report shows rows and data: images as pictures, rows of a table as text. :func:`view_of` chooses."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.report_page.inputs import Picture, ReportInputs
from tasks.report_page.pictures import data_uri
from tasks.report_page.wording import NOTHING, number
from training.records import DatasetVersion, TableColumn, TableSchema

_SHOWN_MISTAKES = 24
_PIXELATED_UP_TO_PX = 96
_SHOWN_COLUMNS = 12
_SHOWN_CATEGORIES = 8


class DataView(Protocol):
    """The view of one kind of data. `mistakes_template` shows the candidate's mistakes of a classification."""

    mistakes_template: str

    def mistakes(self, inputs: ReportInputs) -> dict[str, Any]:
        """Variables of `mistakes_template`."""

    def examples(self, inputs: ReportInputs, records: Sequence[Any]) -> list[tuple[Any, list[str]]]:
        """`records` (mistakes or largest errors), each with the values of the columns that are shown."""

    def pictures(self, inputs: ReportInputs) -> list[dict[str, Any]]:
        """The pictures of the examples: `source`, a data URI, and `pixelated`; empty for rows of a table."""

    def example_columns(self, inputs: ReportInputs) -> dict[str, Any]:
        """Variables of the examples' tables.

        `example_columns` are the names of the columns that examples show, `example_styles` the style classes of these
        columns, and `more_columns` is the number of other columns.
        """

    def data(self) -> dict[str, Any]:
        """Variables of the page's section about the data.

        `data_sentence` describes the dataset, `data_rows` are (name, value) pairs of a table with the caption
        `data_caption`, and `table_columns` are the :class:`ColumnFacts` of a table's columns. `table_warnings` say
        what makes a model look better than it is.
        """


def picture(pixels: Picture) -> dict[str, Any]:
    """An image as templates draw it: `source`, a data URI, and `pixelated`, for small images."""
    return {"source": data_uri(pixels), "pixelated": max(pixels.shape[1:]) <= _PIXELATED_UP_TO_PX}


@dataclass(frozen=True)
class ImageView:
    """A dataset of images."""

    mistakes_template = "mistake_pictures.html.j2"
    version: DatasetVersion

    def mistakes(self, inputs: ReportInputs) -> dict[str, Any]:
        """See :class:`DataView`."""
        shown = zip(inputs.evaluation.mistakes, self.pictures(inputs), strict=False)
        return {
            "mistakes": [
                {"record": record, "place": inputs.place_of(record.row), **picture}
                for record, picture in shown
            ]
        }

    def pictures(self, inputs: ReportInputs) -> list[dict[str, Any]]:
        """See :class:`DataView`."""
        return list(map(picture, inputs.example_pictures[:_SHOWN_MISTAKES]))

    def examples(self, inputs: ReportInputs, records: Sequence[Any]) -> list[tuple[Any, list[str]]]:
        """`records` without values: an image has no columns."""
        del inputs
        return [(record, []) for record in records]

    def example_columns(self, inputs: ReportInputs) -> dict[str, Any]:
        """See :class:`DataView`."""
        del inputs
        return {"example_columns": [], "example_styles": [], "more_columns": 0}

    def data(self) -> dict[str, Any]:
        """See :class:`DataView`."""
        channels, height, width = self.version.image_shape
        noun = "channel" if channels == 1 else "channels"
        pixels = zip(self.version.mean, self.version.std, strict=False)
        table = self.version.table
        learned = f"{len(self.version.classes)} classes" if table is None else f"target {table.target}"
        return {
            "data_sentence": f"{learned}, images of {height} × {width} pixels with {channels} {noun}",
            "data_caption": "Rows and normalisation",
            "data_rows": [
                *([] if table is None else [(f"Target {table.target}", _target(table))]),
                *(
                    (
                        f"Normalised, channel {number}" if len(self.version.mean) > 1 else "Normalised",
                        f"by mean {mean:.4f}, standard deviation {std:.4f}",
                    )
                    for number, (mean, std) in enumerate(pixels, start=1)
                ),
            ],
            "table_columns": [],
            "table_warnings": [],
        }


@dataclass(frozen=True)
class TableView:
    """A dataset of rows of a table. The columns that are shown are those before preprocessing."""

    mistakes_template = "mistake_rows.html.j2"
    version: DatasetVersion
    schema: TableSchema

    def mistakes(self, inputs: ReportInputs) -> dict[str, Any]:
        """See :class:`DataView`."""
        return {
            "mistakes": [
                {"record": record, "place": inputs.place_of(record.row), "values": values}
                for record, values in self.examples(inputs, inputs.evaluation.mistakes)[:_SHOWN_MISTAKES]
            ],
            **self.example_columns(inputs),
        }

    def pictures(self, inputs: ReportInputs) -> list[dict[str, Any]]:
        """See :class:`DataView`."""
        del inputs
        return []

    def data(self) -> dict[str, Any]:
        """See :class:`DataView`."""
        schema, classes, rows = self.schema, self.version.classes, self.version.rows("train")
        count = len(schema.raw.columns)
        target = (
            (schema.target, f"one of {len(classes)} classes") if classes else (schema.target, _target(schema))
        )
        columns = (
            f"{count} feature {'column' if count == 1 else 'columns'}" if schema.text is None else "text"
        )
        return {
            "data_sentence": f"{columns}, target {schema.target}",
            "data_caption": "Rows and target",
            "data_rows": [(f"Target {target[0]}", target[1]), *_preprocessing(schema), *_tokens(schema)],
            "table_columns": [
                column_facts(column, rows) for column in schema.raw.columns if column.kind != "text"
            ],
            "table_warnings": list(schema.warnings),
        }

    def example_columns(self, inputs: ReportInputs) -> dict[str, Any]:
        """See :class:`DataView`."""
        shown = [self.schema.raw.columns[at] for at in self._shown(inputs)]
        return {
            "example_columns": [column.name for column in shown],
            "example_styles": ["text" if column.kind == "text" else "" for column in shown],
            "more_columns": len(self.schema.raw.columns) - len(shown),
        }

    def examples(self, inputs: ReportInputs, records: Sequence[Any]) -> list[tuple[Any, list[str]]]:
        """See :class:`DataView`."""
        shown = self._shown(inputs)
        pairs = zip(records, inputs.example_rows, strict=True)
        return [(record, [values[at] for at in shown]) for record, values in pairs]

    def _shown(self, inputs: ReportInputs) -> list[int]:
        """Places of at most 12 columns: those by which a tree model gained most, else the first."""
        columns = self.schema.raw.columns
        gain = self._gains(inputs.importances)
        chosen = sorted(range(len(columns)), key=lambda at: -gain[columns[at].name])[:_SHOWN_COLUMNS]
        return sorted(chosen)

    def _gains(self, importances: dict[str, float]) -> dict[str, float]:
        """The gain of each column; with preprocessing, the sum over its output columns."""
        if self.schema.preprocessing is None:
            return defaultdict(float, importances)
        gains: dict[str, float] = defaultdict(float)
        for column, made in zip(self.schema.columns, self.schema.preprocessing.made, strict=True):
            gains[made.source] += importances.get(column.name, 0.0)
        return gains


@dataclass(frozen=True)
class ColumnFacts:
    """A column of a table as the page shows it."""

    name: str
    kind: str
    values: str
    missing: str


def column_facts(column: TableColumn, rows: int) -> ColumnFacts:
    """Kind, values and missing values of a column in the train split, which has `rows` rows."""
    missing = f"{column.missing:,}" if column.missing else "none"
    values = "no values" if rows and column.missing == rows else _SPELLED[column.kind](column)
    return ColumnFacts(column.name, column.kind, values, missing)


def _preprocessing(schema: TableSchema) -> list[tuple[str, str]]:
    """The steps in order, and the number of their output columns."""
    if schema.preprocessing is None:
        return []
    columns = len(schema.columns)
    return [
        *(
            (f"Preprocessing, step {number}", str(step))
            for number, step in enumerate(schema.preprocessing.declared, 1)
        ),
        ("Columns after preprocessing", f"{columns:,}"),
    ]


def _tokens(schema: TableSchema) -> list[tuple[str, str]]:
    """How text becomes tokens."""
    if (text := schema.text) is None:
        return []
    made = "trained on the train split" if text.trained else "given by the recipe"
    cut = f"{text.cut:,} longer rows of the train split were cut" if text.cut else "no row was cut"
    return [
        ("Tokenizer", f"{made}, {text.vocabulary:,} tokens"),
        ("Tokens of a row", f"{text.length:,}; {cut}"),
    ]


def _target(schema: TableSchema) -> str:
    return f"mean {number(schema.target_mean)}, standard deviation {number(schema.target_std)} in the train split"


def _categories(column: TableColumn) -> str:
    """The most frequent categories with their counts."""
    pairs = sorted(zip(column.categories, column.counts, strict=False), key=lambda pair: (-pair[1], pair[0]))
    shown = ", ".join(f"{name} ({count:,})" for name, count in pairs[:_SHOWN_CATEGORIES])
    rest = len(pairs) - _SHOWN_CATEGORIES
    return shown + (f" and {rest:,} more" if rest > 0 else "")


def _numbers(column: TableColumn) -> str:
    return f"{number(column.least)} to {number(column.most)}, mean {number(column.mean)}"


def _share_true(column: TableColumn) -> str:
    return f"{100 * column.mean:.1f}\N{NO-BREAK SPACE}% true"


def _dates(column: TableColumn) -> str:
    """First and last date; the numbers are days since 1970-01-01."""
    return f"{_date(column.least)} to {_date(column.most)}"


def _date(days: float) -> str:
    from datetime import UTC, datetime, timedelta

    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days)
    except OverflowError:
        return NOTHING
    return at.strftime("%Y-%m-%d") if days == int(days) else at.strftime("%Y-%m-%d %H:%M")


_SPELLED = {"number": _numbers, "category": _categories, "boolean": _share_true, "date": _dates}


def view_of(version: DatasetVersion) -> DataView:
    """The view of a dataset's rows."""
    if version.table is None or version.has_images:
        return ImageView(version)
    return TableView(version, version.table)
