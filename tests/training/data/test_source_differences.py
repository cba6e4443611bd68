"""Before rows are prepared, a source tells which of them are new, gone and changed, as the prepared version will."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_runs import prepared_from

from training.data.differences import differences
from training.data.source_differences import differences_of_source
from training.data.sources.digits import Digits
from training.data.sources.folder import ImageFolder
from training.data.sources.table import Table
from training.settings.schema import DataSettings
from training.storage.paths import Home


def write_rows(folder: Path, rows: int, more: float = 0.0, column: str = "") -> Path:
    extra = ("," + column) if column else ""
    lines = [
        f"{row},{20 + row / 4 + more},{(1, 2, 4)[row % 3] / 8},{'yes' if row % 3 else 'no'}"
        + (f",{row % 7}" if column else "")
        for row in range(rows)
    ]
    folder.mkdir(exist_ok=True)
    (folder / "rows.csv").write_text("\n".join([f"id,age,share,left{extra}", *lines]) + "\n")
    return folder / "rows.csv"


@pytest.mark.parametrize("key", ["id", ()])
@pytest.mark.parametrize(("target", "problem"), [("left", "classification"), ("share", "regression")])
@pytest.mark.parametrize("change", [{}, {"more": 0.01}, {"column": "income"}])
def test_a_table_differs_as_its_prepared_version_does(
    key: Any, target: str, problem: Any, change: dict[str, Any], tmp_path: Path
) -> None:
    home, options = Home(tmp_path / "home"), {"target": target, "key": key}
    before = Table(write_rows(tmp_path, 80), **options).fetch(home.sources / "rows")
    old = prepared_from(home, before, "rows", DataSettings(), problem)
    after = Table(write_rows(tmp_path, 90, **change), **options).fetch(home.sources / "rows")
    expected = differences_of_source(old, after, DataSettings(), "")
    assert expected == differences(old, prepared_from(home, after, "rows", DataSettings(), problem))
    assert expected is not None
    assert expected.added + expected.changed > 0


def test_a_folder_of_images_differs_as_its_prepared_version_does(tmp_path: Path) -> None:
    home, draw = Home(tmp_path / "home"), np.random.default_rng(0)

    def add(name: str, numbers: range) -> None:
        for number in numbers:
            file = tmp_path / "pictures" / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (6, 6, 3), np.uint8)).save(file)

    add("rings", range(20))
    add("squares", range(20))
    source, settings = ImageFolder(tmp_path / "pictures"), DataSettings(image_size=4)
    old = prepared_from(home, source.fetch(home.sources / "pictures"), "pictures", settings)
    add("crosses", range(15))
    (tmp_path / "pictures" / "rings" / "3.png").unlink()
    after = source.fetch(home.sources / "pictures")
    expected = differences_of_source(old, after, settings, "")
    assert expected is not None
    assert expected.words() == "+15 images (crosses: new class, 15), 1 removed"
    assert expected == differences(old, prepared_from(home, after, "pictures", settings))


def test_what_only_preparation_can_tell_is_left_to_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    files = Digits().fetch(home.sources / "digits")
    old = prepared_from(home, files, "digits", DataSettings())
    assert differences_of_source(old, files, DataSettings(), "") is None
    table = Table(write_rows(tmp_path, 80), target="left").fetch(home.sources / "rows")
    rows = prepared_from(home, table, "rows", DataSettings())
    assert differences_of_source(rows, table, DataSettings(max_train_rows=10), "") is None
    dropped = rows.model_copy(update={"dropped": ("rows.csv row 1: no target",)})
    assert differences_of_source(dropped, table, DataSettings(), "") is None
