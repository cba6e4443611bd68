"""Check texts before preparation: the text and the target of every row, and a tokenizer that the recipe names."""

from pathlib import Path

from training.data.tables.table_check import check_rows
from training.data.tables.typed_copy import read_notes
from training.data.tables.values import FEATURE
from training.data.text.plain_texts import COUNTED
from training.data.text.shards import usable
from training.data.text.tokenizers import Prepared, given, read_content
from training.records import ProblemName, SourceFiles, TableColumn, TableSchema, TextEncoding
from training.settings.schema import DataSettings


def check_text(files: SourceFiles, settings: DataSettings, problem: ProblemName) -> TableSchema:
    """Check texts, targets and a given tokenizer; returns the schema, as far as it is known before preparation.

    Without a given tokenizer, the vocabulary is 0. Raises :class:`training.errors.DataError` as
    :func:`training.data.tables.table_check.check_table`, for too many rows without a text, and for a tokenizer that
    can't be used.
    """
    notes = read_notes(Path(files.root))
    (text,) = notes.columns
    schema = check_rows(
        files,
        settings,
        problem,
        lambda rows: usable(rows, text, notes.target)[1],
        needed=f"{FEATURE}{text}",
    )
    tokenizer = Prepared("", 0, 0)
    if files.tokenizer:
        tokenizer = given_tokenizer(files, settings)
    encoding = TextEncoding(
        length=settings.max_tokens,
        vocabulary=tokenizer.vocabulary,
        padding=tokenizer.padding,
        tokenizer=tokenizer.digest,
        trained=not files.tokenizer,
    )
    columns = tuple(TableColumn(name=column.name, kind="text") for column in schema.columns)
    return TableSchema(target=schema.target or COUNTED, columns=columns, text=encoding)


def given_tokenizer(files: SourceFiles, settings: DataSettings) -> Prepared:
    """The tokenizer that the recipe names. Raises :class:`training.errors.DataError` if it can't be used."""
    file = Path(files.tokenizer)
    return given(read_content(file, file.stem), settings.max_tokens, f"the tokenizer of {files.origin}")
