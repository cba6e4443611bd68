"""Records of a table's columns, and of the preprocessing that computes a model's columns from the table's columns."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from training.record_base import Record

# "text" is the kind of a text source's column alone.
ColumnKind = Literal["number", "category", "boolean", "date", "text"]
PreprocessorName = Literal[
    "SimpleImputer",
    "StandardScaler",
    "MinMaxScaler",
    "MaxAbsScaler",
    "RobustScaler",
    "OneHotEncoder",
    "OrdinalEncoder",
    "Concatenator",
]


class TableColumn(Record):
    """A feature column of a table: its type, and statistics of its values over the train split.

    `mean`, `std`, `least` and `most` are over the rows with a value, computed from the numbers by which
    :mod:`training.data.tables.encoding` encodes the values (booleans as 0 and 1, dates as days since 1970). A
    category column has no such statistics: these fields keep their defaults. `std` is 1 for a column whose values are
    all equal.
    """

    name: str
    kind: ColumnKind
    mean: float = 0.0
    std: float = 1.0
    least: float = 0.0
    most: float = 0.0
    missing: int = Field(0, description="train rows without a value")
    categories: tuple[str, ...] = Field(
        (), description="values of a category column in the train split, sorted"
    )
    counts: tuple[int, ...] = Field((), description="train rows of each category")


class DeclaredStep(Record):
    """A preprocessor of Ray Data as a recipe declares it: its class and its arguments, without statistics.

    `outputs` has a name for each of `columns`, or a single name for a Concatenator. Arguments that the class does not
    have keep their defaults.
    """

    preprocessor: PreprocessorName
    columns: tuple[str, ...]
    outputs: tuple[str, ...]
    strategy: Literal["mean", "most_frequent", "constant"] | None = None
    fill_value: bool | int | float | str | None = None
    max_categories: tuple[tuple[str, int], ...] = ()  # pairs, because a recipe's reference is hashed
    quantile_range: tuple[float, float] | None = None

    def __str__(self) -> str:
        """The step as Python code of a recipe; `output_columns` is left out if the step replaces its columns."""
        said: dict[str, Any] = {"columns": list(self.columns)}
        if self.outputs != self.columns:
            said["output_columns"] = list(self.outputs)
        further = self.model_dump(exclude_defaults=True, exclude={"preprocessor", "columns", "outputs"})
        if self.max_categories:
            further["max_categories"] = dict(self.max_categories)
        arguments = ", ".join(f"{name}={value!r}" for name, value in (said | further).items())
        return f"{self.preprocessor}({arguments})"


class Fill(Record):
    """Replaces missing values by `value`."""

    does: Literal["fill"] = "fill"
    value: float


class Scale(Record):
    """(number - `shift`) / `divisor`; like Ray's RobustScaler, a `divisor` of 0 gives 0, also for missing values."""

    does: Literal["scale"] = "scale"
    shift: float
    divisor: float


class Position(Record):
    """The position of a number in `values`; missing for any other number."""

    does: Literal["position"] = "position"
    values: tuple[float, ...] = Field(min_length=1)


class Equal(Record):
    """1 for the number `value`, and 0 for any other number and for a missing value."""

    does: Literal["equal"] = "equal"
    value: float


Operation = Annotated[Fill | Scale | Position | Equal, Field(discriminator="does")]


class MadeColumn(Record):
    """How preprocessing computes a column: the operations to apply, in order, to a column of the data.

    The operations start from the 64-bit numbers by which :mod:`training.data.tables.encoding` encodes the values of
    `source`, except that an unknown category is -1 instead of NaN.
    """

    source: str
    operations: tuple[Operation, ...] = ()


class Preprocessing(Record):
    """Fitted preprocessors: how a model's columns are computed from the columns of the part files.

    `columns` are the columns of the part files, and `made` has an entry for each column of the model, in order. The
    statistics in the operations are over the training rows, without validation rows.
    """

    declared: tuple[DeclaredStep, ...]
    columns: tuple[TableColumn, ...]
    made: tuple[MadeColumn, ...]


class TextEncoding(Record):
    """How the text of a row becomes the model's input: token ids, of which each row has the same number.

    The file `tokenizer.json` beside the dataset's manifest cuts and pads by itself: the library `tokenizers` reads it.
    """

    length: int = Field(description="token ids of each row; longer rows are cut, shorter ones padded")
    vocabulary: int = Field(description="ids are from 0 to this number, exclusive")
    padding: int = Field(description="id that fills up a short row")
    tokenizer: str = Field(description="sha256 of the file tokenizer.json")
    trained: bool = Field(
        description="whether the train split made the tokenizer; otherwise the recipe names it"
    )
    cut: int = Field(0, description="rows of the train split with more tokens, which were cut")


class TableSchema(Record):
    """The columns of a table: the features in the order in which a model takes them, and the target.

    `target_mean` and `target_std` are over the train split of a regression; `target_std` is 1 if all targets are
    equal. A dataset of images with numbers to predict has this schema, too: with the target, and without `columns`.
    A dataset of text has one column, of kind "text", and `text`, which describes the token ids.

    With `preprocessing`, `columns` are the output of the preprocessors. A scaled or one-hot encoded column has mean 0
    and deviation 1 here, so that a network takes its numbers without standardising them again.
    """

    target: str
    columns: tuple[TableColumn, ...]
    target_mean: float = 0.0
    target_std: float = 1.0
    given: dict[str, ColumnKind] = Field(
        {},
        description="columns of the source and their kinds, where a function of the recipe made `columns` of them",
    )
    warnings: tuple[str, ...] = Field(
        (), description="columns and rows that make a model look better than it is, for people"
    )
    preprocessing: Preprocessing | None = None
    text: TextEncoding | None = None
    weight: str | None = Field(
        None, description="column of the rows' weights, which is no input; none: no weights"
    )

    @property
    def raw(self) -> "TableSchema":
        """The table before preprocessing; its columns are the columns of the part files."""
        if self.preprocessing is None:
            return self
        return self.model_copy(update={"columns": self.preprocessing.columns, "preprocessing": None})

    @model_validator(mode="after")
    def _has_preprocessing_of_its_columns(self) -> Self:
        preprocessing = self.preprocessing
        if preprocessing is not None:
            unknown = {made.source for made in preprocessing.made} - {
                column.name for column in preprocessing.columns
            }
            if unknown or len(preprocessing.made) != len(self.columns):
                raise ValueError("the preprocessing computes other columns than the table's")
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `preprocessing`, `text` and `weight` if they are None, as for most datasets."""
        fields: dict[str, Any] = write(self)
        for name in ("preprocessing", "text", "weight"):
            if getattr(self, name) is None:
                fields.pop(name, None)
        return fields
