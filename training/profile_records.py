"""Records of what a dataset looks like, and of what changed since the dataset of the champion."""

from typing import Literal

from pydantic import Field

from training.record_base import Record
from training.table_records import ColumnKind

# Shares at which a profile has the quantiles of a number: least, 1 %, every 5 %, 99 %, most.
SHARES = (0.0, 0.01, *(number / 20 for number in range(1, 20)), 0.99, 1.0)
# Shares at which a profile has the quantiles of the absolute values that are not 0.
SIZE_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
MEASURED_ROWS = 2048  # images or texts that are measured, at most

Effect = Literal["tell", "hold"]


class ColumnProfile(Record):
    """What the values of one column look like, over train and test rows.

    Numbers and dates have quantiles; dates are days since 1970. Categories and booleans have shares of the rows with a
    value. In a table with very many rows, quantiles are those of a fixed random part of the rows.
    """

    name: str
    kind: ColumnKind
    missing: float = Field(0.0, description="share of the rows without a value")
    quantiles: tuple[float, ...] = Field(
        (), description="at the shares SHARES of the values; empty: no values"
    )
    sizes: tuple[float, ...] = Field(
        (), description="quantiles of the absolute values other than 0, at SIZE_SHARES"
    )
    zeros: float = Field(0.0, description="share of the values that are 0")
    categories: dict[str, float] = Field(
        {}, description="shares of the commonest categories, commonest first"
    )
    distinct: int = Field(0, description="number of categories, which may be more than are listed")

    def quantile(self, share: float) -> float:
        """The quantile at one of SHARES; only for a column that has quantiles."""
        return self.quantiles[SHARES.index(share)]


class Profile(Record):
    """What a dataset version looks like, over train and test rows.

    `columns` are the features of a table. `measures` describe each image (brightness and contrast from 0 to 1, whether
    it is grey) or each text (tokens, characters, share of unknown tokens).
    """

    rows: int
    newest: float | None = Field(
        None, description="latest value of the table's time column; of dates in days since 1970"
    )
    newest_is_date: bool = False
    columns: tuple[ColumnProfile, ...] = ()
    target: ColumnProfile | None = Field(None, description="of a regression")
    classes: dict[str, int] = Field({}, description="rows of each class")
    measures: tuple[ColumnProfile, ...] = ()
    shape: tuple[int, ...] = Field((), description="of images: channels, height and width as prepared")
    subset: tuple[int | None, int | None] = Field(
        (None, None), description="data.max_train_rows and data.max_test_rows"
    )


class Change(Record):
    """One difference between two profiles, with its measure, the limit that it passed, and what follows from it."""

    what: str = Field(
        description="the rule: rows, time, column, kind, missing, zeros, scale, constant, shape, categories, classes, "
        "images, identity or labels"
    )
    column: str | None = Field(
        None, description="the column, class or measure that changed; none: the whole dataset"
    )
    reference: str = Field(description="value in the champion's dataset, for people")
    current: str = Field(description="value in this dataset, for people")
    measure: float
    limit: float
    effect: Effect
    sentence: str


class Acceptance(Record):
    """That a person took a held dataset as it is: who, when and why."""

    fingerprint: str = Field(description="of the dataset version that was held")
    who: str
    at: str
    why: str
    champion: str = Field(description="version that was champion then")
    run_id: str = Field("", description="the MLflow run that was held, which has the dataset's profile")


class DataCheck(Record):
    """Comparison of a run's dataset with the champion's; `data.json` in the run's folder.

    `outcome` is "fine", "changed", "held", "ignored" (by the setting `data.changes`) or "not compared".
    """

    outcome: Literal["fine", "changed", "held", "ignored", "not compared"]
    model: str
    fingerprint: str
    summary: str = Field(description="the outcome in one sentence")
    reference_version: str | None = Field(None, description="the champion's version; none: not compared")
    changes: tuple[Change, ...] = ()
    acceptance: Acceptance | None = None
