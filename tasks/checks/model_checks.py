"""Checks before training, without Prefect: the champion must have learned the recipe's problem from the same inputs."""

from training.data.tables.other_columns import (
    ColumnDifferences,
    differences_of,
    kinds_of,
    own_columns_in_words,
)
from training.errors import SettingError
from training.problems import problem_named
from training.records import DatasetVersion, ProblemName, TableSchema


def check_same_shape(model: str, number: str, theirs: tuple[int, ...], ours: tuple[int, ...]) -> None:
    """Raises :class:`SettingError` when the champion takes images of another shape (channels, height, width)."""
    if theirs != ours:
        raise SettingError(
            f"tracking.model: champion {model} version {number} takes images of {theirs} (channels, height, "
            f"width), the data are {ours}, so the two can't be compared. Set data.image_size and "
            "data.channels to match, or register under another name with tracking.model."
        )


def check_comparable(
    model: str,
    number: str,
    theirs: tuple[tuple[int, ...], ProblemName, TableSchema | None],
    version: DatasetVersion,
) -> str:
    """How the champion is scored if the table has other columns, with the remedies, in words; empty if it has the same.

    Raises :class:`SettingError` when the champion learned another problem, or takes other inputs than the dataset's: of
    a table, when it has none of the champion's columns. `theirs` is the result of
    :func:`tasks.registry.safe_loading.registered_inputs` for the champion.
    """
    shape, problem, table = theirs
    champion = f"tracking.model: champion {model} version {number}"
    if problem != version.problem:
        raise SettingError(
            f"{champion} is a model for {problem}, the recipe's problem is {version.problem}, {_ANOTHER_NAME}"
        )
    theirs_are, ours_are = _kind(table), "images" if version.has_images else _kind(version.table)
    if theirs_are != ours_are:
        raise SettingError(f"{champion} takes {theirs_are}, the data are {ours_are}, {_ANOTHER_NAME}")
    if version.has_images:
        check_same_shape(model, number, shape, version.shape)
    if table is None or version.table is None:
        return ""
    if table.target != version.table.target:
        raise SettingError(
            f"{champion} predicts {table.target!r}, the recipe's target is {version.table.target!r}, {_ANOTHER_NAME}"
        )
    if problem_named(version.problem).predicts_text:
        _check_same_lengths(champion, table, version.table)
    _check_some_column(champion, table, version.table)
    words = own_columns_in_words(f"champion {model} version {number}", table, version)
    return f"{words}. {differences_of(table, version).remedies()}" if words else ""


def _check_same_lengths(champion: str, theirs: TableSchema, ours: TableSchema) -> None:
    """Refuse language models that read different numbers of tokens of a text: their losses are over other tokens."""
    if theirs.text is not None and ours.text is not None and theirs.text.length != ours.text.length:
        raise SettingError(
            f"{champion} reads {theirs.text.length} tokens of each text, and the recipe {ours.text.length}, "
            f"{_ANOTHER_NAME} Or set data.max_tokens={theirs.text.length}."
        )


def _check_some_column(champion: str, theirs: TableSchema, ours: TableSchema) -> None:
    """Refuse a table that has none of the champion's columns: the champion would predict from missing values alone."""
    old, new = kinds_of(theirs), kinds_of(ours)
    if old and not old.keys() & new.keys():
        differences = ColumnDifferences.between(old, new).words()
        raise SettingError(
            f"{champion} takes columns of which the table has none ({differences}), {_ANOTHER_NAME} Or repair the "
            "export, or take the champion's columns out of the recipe's drop=."
        )


def _kind(table: TableSchema | None) -> str:
    """The kind of rows with this schema, as text."""
    if table is None or not table.columns:
        return "images"
    return "a table" if table.text is None else "text"


def check_same_transform(model: str, number: str, theirs: str, ours: str) -> None:
    """Raises :class:`SettingError` when the champion was trained with another `transform_rows`, or with none.

    `theirs` and `ours` are digests of the function, empty for a recipe without the function.
    """
    if theirs != ours:
        before, now = ("a recipe with" if digest else "a recipe without" for digest in (theirs, ours))
        how = (
            f"{before} the function, and this is {now}"
            if bool(theirs) != bool(ours)
            else "another version of the function"
        )
        raise SettingError(
            f"transform_rows: champion {model} version {number} learned from rows of {how}, {_ANOTHER_NAME} Keep the "
            "function in a file beside the recipe, so that other changes of the recipe do not change its version."
        )


_ANOTHER_NAME = "so the two can't be compared. Register under another name with tracking.model."
