"""Check of a recipe's own torch Dataset: its rows must be those of the dataset version, row by row."""

from typing import TYPE_CHECKING, Any

import numpy as np

from training.data.dataset import Columns
from training.data.sample_order import Rows
from training.errors import SettingError
from training.recipe import Recipe
from training.records import DatasetVersion
from training.trainers.generators import generators_kept

if TYPE_CHECKING:
    from torch.utils.data import Dataset

_ROWS = 8  # rows of different classes that are compared, and as many rows spread over the split
_RULE = "row k of the Dataset must be row k of the prepared training rows, see docs/recipes.md, 'A Dataset of your own'"
_CLOSE = 1e-5  # numbers to predict may be float32


def own_dataset(recipe: Recipe, version: DatasetVersion, columns: Columns, learn: Rows) -> "Dataset[Any]":
    """The training rows by the recipe's function `dataset`, of which a few of the rows `learn` are compared.

    A Dataset may change pixels at random, so only the kind and shape of the inputs and the labels are compared. The
    rows are read from a Dataset that is then dropped: reading may open files, or change the Dataset's state. No random
    number of the training is used up. Raises :class:`SettingError` that names the first wrong row.
    """
    assert recipe.dataset is not None
    with generators_kept():
        compared = recipe.dataset(version, "train")
        _check_length(recipe, compared, columns)
        for row in _some_rows(columns, learn):
            _check_row(recipe, version, compared, columns, row)
        del compared
    return recipe.dataset(version, "train")


def _check_length(recipe: Recipe, dataset: Any, columns: Columns) -> None:
    if hasattr(dataset, "__len__") and len(dataset) != len(columns):
        raise SettingError(
            f"recipe {recipe.name}: dataset: it has {len(dataset)} rows for the split train, and the prepared training "
            f"rows are {len(columns)}; {_RULE}"
        )


def _some_rows(columns: Columns, learn: Rows) -> list[int]:
    """A few of the rows `learn`: rows of different classes, and rows at equal distances."""
    _, firsts = np.unique(columns.targets[learn], return_index=True)
    positions = [*_spread(firsts), *_spread(np.arange(len(learn)))]
    return sorted({int(learn[position]) for position in positions})


def _spread(values: Rows) -> list[int]:
    places = np.linspace(0, len(values) - 1, min(_ROWS, len(values))).astype(int)
    return [int(value) for value in values[places]]


def _check_row(recipe: Recipe, version: DatasetVersion, dataset: Any, columns: Columns, row: int) -> None:
    where = f"recipe {recipe.name}: dataset: row {row}"
    given = dataset[row]
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise SettingError(
            f"{where} is no pair of inputs and label; return a pair such as (image, label) for each row"
        )
    inputs, label = given
    kind = str(getattr(inputs, "dtype", type(inputs).__name__)).removeprefix("torch.")
    if version.has_images and kind != "uint8":
        raise SettingError(
            f"{where} has an image of {kind}, not of uint8; return pixels from 0 to 255: Evergreen normalises them, so "
            "leave out ToTensor and Normalize of torchvision"
        )
    shape, wanted = tuple(getattr(inputs, "shape", ())), columns.inputs.shape[1:]
    if shape != wanted:
        raise SettingError(f"{where} has inputs of shape {shape}, and the prepared row has {wanted}; {_RULE}")
    if recipe.problem.predicts_text:  # without labels
        return
    expected = columns.targets[row].item()
    if not _is_label(label, expected):
        raise SettingError(f"{where} has the label {label!r}, and the prepared row has {expected}; {_RULE}")


def _is_label(label: Any, expected: float) -> bool:
    """Whether `label`, a number or an array of one number, is `expected`; floats may be rounded to float32."""
    if isinstance(label, list | tuple):
        return False
    try:
        number = label.item() if hasattr(label, "item") else label
        return bool(
            np.isclose(number, expected, rtol=_CLOSE, atol=0)
            if isinstance(expected, float)
            else number == expected
        )
    except (TypeError, ValueError, RuntimeError):  # no number, or an array of several
        return False
