"""Rows that the report shows as examples are read from all part files of the test split."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from small_runs import prepared
from small_tables import described, values

from tasks.report_page import examples
from tasks.report_page.wording import NOTHING
from training.data.sources.folder import ImageFolder
from training.data.sources.table import Table
from training.data.tables.values import FEATURE
from training.storage.paths import Home


def test_examples_are_found_although_some_parts_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    version = described(values())
    names = [f"{FEATURE}{name}" for name in ("size", "colour", "day")]

    def parts(*_: Any) -> Iterator[pa.Table]:
        for first in (0, 2, 4):
            rows = [[first, first + 1], ["red", None], [1.5, 2.25]]
            yield pa.table(dict(zip(names, rows, strict=True)))

    monkeypatch.setattr(examples, "read_parts", parts)
    assert examples.texts_of(version, [3, 2]) == (("3", NOTHING, "2.25"), ("2", "red", "1.5"))


def test_the_row_of_a_table_is_found_in_its_file(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "coins.csv"
    lines = [f"{number},{'heads' if number % 2 else 'tails'}" for number in range(60)]
    file.write_text("\n".join(["weight,side", *lines]) + "\n")
    version = prepared(home, Table(file, target="side"), "coins")
    rows = list(range(version.rows("test")))
    places = examples.places_of(version, rows)
    assert len(places) == len(rows) > 2
    for (weight,), row in zip(examples.texts_of(version, rows), rows, strict=True):
        name, _, line = places[row].partition(" row ")
        assert Path(name).name == "coins.csv"
        assert lines[int(line) - 1].startswith(f"{weight},")


def test_an_image_is_found_by_the_name_of_its_file(home: Home, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for split, pet, number in np.ndindex(2, 2, 6):
        file = tmp_path / "pets" / ("train", "test")[split] / ("cat", "dog")[pet] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (6, 6)).astype(np.uint8)).save(file)
    version = prepared(home, ImageFolder(tmp_path / "pets"), "pets")
    places = examples.places_of(version, range(version.rows("test")))
    assert len(places) == 12
    for row, pixels in enumerate(examples.pictures_of(version, list(places))):
        with Image.open(tmp_path / "pets" / places[row]) as image:
            assert np.array_equal(np.asarray(image), pixels[0])


def test_rows_without_a_readable_place_keep_their_numbers(tmp_path: Path, home: Home) -> None:
    version = prepared(home)
    (Path(version.path) / version.parts["test"][0].path).write_bytes(b"damaged")
    assert examples.places_of(version, [0]) == {}
