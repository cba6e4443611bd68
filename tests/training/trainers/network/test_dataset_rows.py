"""A Dataset of a recipe whose rows are not those of the dataset version is refused before it trains."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from noisy import noisy_dataset
from small_runs import job_for, tiny_settings

from evergreen import Digits, Recipe
from training.data.dataset import Columns, open_columns
from training.errors import SettingError
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.network.dataset_rows import own_dataset

Row = Callable[[Columns, int], Any]


class Rows:
    """Rows by a function, which draws a random number when it is made; `read` counts the rows that were read."""

    def __init__(self, columns: Columns, row: Row, extra: int):
        self.columns, self.row, self.extra, self.read = columns, row, extra, 0
        random.random()

    def __len__(self) -> int:
        return len(self.columns) + self.extra

    def __getitem__(self, row: int) -> Any:
        self.read += 1
        return self.row(self.columns, row)


def checked(version: DatasetVersion, row: Row, extra: int = 0) -> Any:
    columns = open_columns(version, "train")
    made: list[Rows] = []

    def dataset(version: DatasetVersion, split: str) -> Any:
        made.append(Rows(columns, row, extra))
        return made[-1]

    recipe = Recipe(name="own", source=Digits(), build_model=lambda *_: None, dataset=dataset)  # type: ignore[arg-type,return-value]
    return own_dataset(recipe, version, columns, np.arange(3, len(columns)))


def image(columns: Columns, row: int) -> torch.Tensor:
    return torch.from_numpy(np.array(columns.inputs[row]))


def label(columns: Columns, row: int) -> int:
    return int(columns.targets[row])


def erased(columns: Columns, row: int) -> Any:
    changed = image(columns, row)
    changed[
        :,
        random.randrange(8),
        torch.randint(8, ()),
    ] = np.random.randint(9)
    return changed, label(columns, row)


@pytest.mark.parametrize(
    "row",
    [
        erased,
        lambda columns, row: (np.array(columns.inputs[row]), columns.targets[row]),
        lambda columns, row: [image(columns, row), torch.tensor(label(columns, row))],
    ],
)
def test_the_rows_of_the_version_pass_with_changed_pixels(small_version: DatasetVersion, row: Row) -> None:
    assert checked(small_version, row).read == 0  # other objects were read


def test_no_random_number_is_used_up(small_version: DatasetVersion) -> None:
    def draws() -> tuple[Any, ...]:
        return random.random(), np.random.rand(), float(torch.rand(()))

    def seed() -> None:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)

    seed()
    random.random()  # Rows draws one when it is made
    expected = draws()
    seed()
    checked(small_version, erased)
    assert draws() == expected


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (lambda columns, row: (image(columns, row) / 255, label(columns, row)), "has an image of float32, not"),
        (lambda columns, row: (image(columns, row)[:, 1:], label(columns, row)), r"has inputs of shape \(1, 7, 8\)"),
        (lambda columns, row: (image(columns, row)[0], label(columns, row)), r"has inputs of shape \(8, 8\)"),
        (lambda columns, row: (image(columns, row), 9 - label(columns, row)), "has the label"),
        (lambda columns, row: (image(columns, row), label(columns, row - 1)), "has the label .* row k of the"),
        (lambda columns, row: (image(columns, row), "three"), "has the label 'three'"),
        (lambda columns, row: (image(columns, row), [label(columns, row)]), r"has the label \["),
        (lambda columns, row: image(columns, row), "is no pair"),
    ],
)  # fmt: skip
def test_other_rows_are_refused(small_version: DatasetVersion, row: Row, said: str) -> None:
    with pytest.raises(SettingError, match=rf"recipe own: dataset: row \d+ {said}"):
        checked(small_version, row)


def test_another_number_of_rows_is_refused(small_version: DatasetVersion) -> None:
    with pytest.raises(SettingError, match=r"it has \d+ rows for the split train, and the prepared"):
        checked(small_version, erased, extra=1)


def test_two_classes_that_change_places_are_refused(small_version: DatasetVersion) -> None:
    def swapped(columns: Columns, row: int) -> Any:
        return image(columns, row), {0: 9, 9: 0}.get(label(columns, row), label(columns, row))

    with pytest.raises(SettingError, match="has the label"):
        checked(small_version, swapped)


def test_a_training_refuses_other_rows(home: Home, small_version: DatasetVersion, tmp_path: Path) -> None:
    recipe = Path(noisy_dataset(tmp_path / "own"))
    recipe.write_text(recipe.read_text().replace("columns.targets[row]", "columns.targets[row - 1]"))
    job = job_for(home, small_version, tiny_settings(data={"feed": "loader"}), str(recipe))
    with pytest.raises(SettingError, match=r"recipe erased: dataset: row \d+ has the label"):
        launch(job)
