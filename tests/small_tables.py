"""Tables in memory, small enough to compute by hand, and networks on them."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from small_runs import tiny_settings

from evergreen import Classification, Digits, Recipe, Regression, Torch
from training.data.dataset import Columns
from training.records import DatasetVersion, TableColumn, TableSchema
from training.settings.schema import Settings
from training.trainers.ranks import Ranks

COLOURS = ("blue", "green", "red")


def values(rows: int = 40, seed: int = 0) -> npt.NDArray[np.float32]:
    """Encoded columns: a number, a category of :data:`COLOURS`, a date far from zero."""
    random = np.random.default_rng(seed)
    columns = (random.normal(5, 3, rows), random.integers(0, 3, rows), random.normal(19_000, 40, rows))
    return np.stack(columns, axis=1).astype(np.float32)


def described(inputs: npt.NDArray[np.float32], targets: npt.NDArray[Any] | None = None) -> DatasetVersion:
    """A dataset version of these rows: a regression of float64 `targets`, else a classification of a and b."""

    def number(name: str, kind: Any, column: int) -> TableColumn:
        mean, std = np.nanmean(inputs[:, column].astype(float)), np.nanstd(inputs[:, column].astype(float))
        return TableColumn(name=name, kind=kind, mean=mean, std=std)

    colour = TableColumn(name="colour", kind="category", categories=COLOURS, counts=(1, 1, 1))
    columns = (number("size", "number", 0), colour, number("day", "date", 2))
    is_number = targets is not None and targets.dtype == np.float64
    about = {"target_mean": targets.mean(), "target_std": targets.std()} if is_number else {}  # type: ignore[union-attr]
    nothing: dict[str, Any] = dict.fromkeys(("fingerprint", "path", "source_digest", "source_origin"), "-")
    return DatasetVersion(
        name="small",
        classes=() if is_number else ("a", "b"),
        shape=(3,),
        parts={},
        label_counts={"train": (), "test": ()},
        mean=(),
        std=(),
        problem="regression" if is_number else "classification",
        table=TableSchema(target="price", columns=columns, **about),
        **nothing,
    )


def columns_of(inputs: npt.NDArray[np.float32], targets: npt.NDArray[Any]) -> Columns:
    return Columns(inputs, targets, np.arange(len(targets), dtype=np.uint64))


def on_table(version: DatasetVersion, build: Any = None, **options: Any) -> Recipe:
    """A recipe with a linear model, or with `build(shape, outputs)`."""

    def linear(shape: tuple[int], outputs: int) -> torch.nn.Module:
        return torch.nn.Linear(shape[0], outputs)

    problem = Classification() if version.classes else Regression()
    # The source is never read: rows are given in memory.
    return Recipe("small", source=Digits(), problem=problem, trainer=Torch(build or linear), **options)


def alone() -> Ranks:
    return Ranks(0, 1, torch.device("cpu"), distributed=False)


def plain_steps(**training: Any) -> Settings:
    """Settings under which a step changes the weights by the gradient alone."""
    sgd = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "learning_rate": 1.0}
    return tiny_settings(training={"schedule": "constant", "warmup_share": 0.0, **sgd, **training})
