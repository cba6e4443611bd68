"""Paths of sources in recipes are relative to the recipe's folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from training.data.sources.cifar import Cifar10
from training.data.sources.digits import Digits
from training.data.sources.folder_targets import ImageFolder
from training.data.sources.idx import IdxFiles
from training.data.sources.parquet import ParquetImages
from training.data.sources.places import beside
from training.data.sources.table import Table
from training.data.sources.text import Text

NEAR, FAR = Path("/recipes"), Path("/elsewhere/rows")


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (ImageFolder, {"target": "age"}),
        (ParquetImages, {"label": "class"}),
        (IdxFiles, {"name": "MNIST"}),
        (Cifar10, {}),
        (Table, {"target": "price"}),
        (Text, {"text": "review"}),
    ],
)
def test_a_path_is_relative_to_the_recipe(kind: type[Any], given: dict[str, Any]) -> None:
    assert beside(kind(path="rows", **given), NEAR) == kind(path=NEAR / "rows", **given)
    assert beside(kind(path=FAR, **given), NEAR) == kind(path=FAR, **given)


def test_a_source_without_path_stays_the_same() -> None:
    class Own:
        path = "rows"

    @dataclass(frozen=True)
    class Unset:
        path: str | None = None

    for source in (Digits(), IdxFiles("MNIST"), Own(), Unset()):
        assert beside(source, NEAR) is source
