"""What differs between two dataset versions is counted by row, and said in words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_runs import prepared

from training.data.differences import differences
from training.data.sources.folder import ImageFolder
from training.data.sources.table import Table
from training.data.sources.text import Text
from training.errors import DataError
from training.records import DatasetVersion
from training.storage.paths import Home

ROWS = 60


def table(folder: Path, rows: int = ROWS, **changes: Any) -> DatasetVersion:
    """A version of the table `name`, `age`, `city` and the class `ill`; `changes` replace or add columns."""
    columns: dict[str, Any] = {
        "age": [20 + 0.25 * row for row in range(rows)],
        "city": [("Bonn", "Ulm", "Jena")[row % 3] for row in range(rows)],
        "ill": [("no", "yes")[row % 2] for row in range(rows)],
    } | changes
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return prepared(Home(folder / "home"), Table(folder / "rows.csv", target="ill"), "rows")


def test_appended_rows_are_new_and_the_others_are_kept(tmp_path: Path) -> None:
    found = differences(table(tmp_path / "old"), table(tmp_path / "new", rows=ROWS + 5))
    assert (found.added, found.removed, found.changed, found.kept) == (5, 0, 0, ROWS)
    assert found.words() == "+5 rows, 0 removed"
    assert not found.replaced


def test_a_rewritten_column_without_a_key_replaces_the_rows(tmp_path: Path) -> None:
    shifted = table(tmp_path / "new", age=[20.01 + 0.25 * row for row in range(ROWS)])
    found = differences(table(tmp_path / "old"), shifted)
    assert found.replaced
    assert (found.added, found.removed, found.kept) == (ROWS, ROWS, 0)
    assert found.words().startswith(f"{ROWS} of {ROWS} rows vanished and {ROWS} others came")


def test_growth_and_a_lost_half_are_no_replacement(tmp_path: Path) -> None:
    old = table(tmp_path / "old")
    assert not differences(old, table(tmp_path / "twice", rows=3 * ROWS)).replaced
    lost = differences(table(tmp_path / "twice", rows=3 * ROWS), old)
    assert (lost.removed, lost.added, lost.replaced) == (2 * ROWS, 0, False)


def test_another_target_of_the_same_features_is_a_change(tmp_path: Path) -> None:
    other = ["yes", "yes", *(("no", "yes")[row % 2] for row in range(2, ROWS))]
    found = differences(table(tmp_path / "old"), table(tmp_path / "new", ill=other))
    assert (found.added, found.removed, found.changed, found.kept) == (0, 0, 1, ROWS)
    assert found.relabelled == 1
    assert found.words() == "+0 rows, 0 removed, 1 with another target"


def test_equal_rows_are_counted_one_by_one(tmp_path: Path) -> None:
    ages = [30 + row % 6 for row in range(ROWS)]
    old = table(tmp_path / "old", age=ages)
    new = table(tmp_path / "new", rows=ROWS + 3, age=[*ages, 30, 30, 31])
    found = differences(old, new)
    assert (found.added, found.removed, found.changed, found.kept) == (3, 0, 0, ROWS)


def test_a_new_column_leaves_the_rows_as_they_are(tmp_path: Path) -> None:
    found = differences(
        table(tmp_path / "old"), table(tmp_path / "new", rows=ROWS + 1, income=range(ROWS + 1))
    )
    assert (found.added, found.removed, found.kept) == (1, 0, ROWS)
    assert found.words() == "+1 row, 0 removed, new column income"
    gone = differences(table(tmp_path / "new", income=range(ROWS)), table(tmp_path / "old"))
    assert gone.words() == "+0 rows, 0 removed, gone column income"


def test_tables_without_a_common_row_and_with_other_columns_are_not_called_replaced(tmp_path: Path) -> None:
    shifted = table(tmp_path / "new", age=[20.01 + 0.25 * row for row in range(ROWS)], income=range(ROWS))
    assert not differences(table(tmp_path / "old"), shifted).replaced


def pictures(folder: Path, **counts: int) -> DatasetVersion:
    """A version of images, all different, in a folder for each class."""
    for number, (name, count) in enumerate(counts.items()):
        for row in range(count):
            pixels = np.full((4, 4), 100, np.uint8)
            pixels[0, 0], pixels[3, 3] = row, number
            (folder / "images" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / "images" / name / f"{row}.png")
    return prepared(Home(folder / "home"), ImageFolder(folder / "images"), "pictures")


def test_a_new_class_is_named_with_its_images(tmp_path: Path) -> None:
    old = pictures(tmp_path / "old", rings=20, squares=20)
    new = pictures(tmp_path / "new", rings=25, squares=20, crosses=15)
    assert differences(old, new).words() == "+20 images (crosses: new class, 15), 0 removed"
    assert differences(new, old).words() == "+0 images, 20 removed (crosses: class gone, 15)"


def test_texts_are_compared_by_their_text(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="install the extras by: make setup EXTRAS=all")

    def texts(folder: Path, rows: int) -> DatasetVersion:
        folder.mkdir()
        lines = [f"good film {row},yes\nbad film {row},no" for row in range(rows)]
        (folder / "texts.csv").write_text("\n".join(["text,good", *lines]))
        source = Text(folder / "texts.csv", text="text", target="good")
        return prepared(Home(folder / "home"), source, "texts")

    assert (
        differences(texts(tmp_path / "old", 20), texts(tmp_path / "new", 21)).words() == "+2 texts, 0 removed"
    )


def test_rows_that_are_gone_can_not_be_compared(tmp_path: Path) -> None:
    old, new = table(tmp_path / "old"), table(tmp_path / "new", rows=ROWS + 1)
    (Path(old.path) / old.parts["train"][0].path).unlink()
    with pytest.raises(DataError, match="can't be read"):
        differences(old, new)
