"""The function `transform_rows` of a recipe, as an object that any process can call."""

from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from training.data.preparation.row_function import RowFunction
from training.recipe import TransformRows, reload
from training.recipe_copy import keep_copy
from training.recipe_sources import RecipeRef
from training.records import Record

_loading = Lock()


class RecipeFunction(Record):
    """`transform_rows` of the copy of a recipe in `folder`.

    A process executes the copy once. Calls raise :class:`training.errors.SettingError` if the copy was changed, and,
    unless `any_version`, if Evergreen's own files that the recipe uses are of another version.
    """

    ref: RecipeRef
    folder: str
    any_version: bool = False

    def __call__(self, rows: Any) -> Any:
        """What the function returns for a batch of rows."""
        with _loading:  # importing a recipe is not safe in two threads
            function = _function(self)
        return function(rows)

    @property
    def label(self) -> str:
        """The function and its file, for messages."""
        with _loading:
            function = _function(self)
        return f"{self.ref.path}: transform_rows={getattr(function, '__name__', type(function).__name__)}"

    @property
    def digest(self) -> str:
        """sha256 over the code that the function's result depends on."""
        return self.ref.transform


def recipe_function(ref: RecipeRef, folder: Path, *, any_version: bool = False) -> RowFunction | None:
    """`transform_rows` of the recipe of `ref`, whose copy is written to `folder` unless it is there; None without one.

    `any_version`: the copy may have been made by another version of Evergreen.

    Raises :class:`training.errors.SettingError` if the recipe's files have changed since `ref` was created.
    """
    if not ref.transform:
        return None
    keep_copy(ref, folder)
    return RecipeFunction(ref=ref, folder=str(folder), any_version=any_version)


@cache
def _function(transform: RecipeFunction) -> TransformRows:
    function = reload(transform.ref, Path(transform.folder), any_version=transform.any_version).transform_rows
    assert function is not None
    return function
