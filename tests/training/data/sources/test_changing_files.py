"""A file that changes or is removed while a source reads the file: refused, and no copy of the rows is kept."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.sources import folder_listing, parquet, parquet_targets, table
from training.data.sources.folder_targets import ImageFolder
from training.data.sources.parquet import ParquetImages
from training.data.sources.parquet_targets import ParquetTargets
from training.data.sources.table import Table
from training.data.tables import ingest, typed_copy
from training.errors import DataError

ROWS = "a,y\n" + "".join(f"{row},{row % 7}\n" for row in range(40))
OTHER = ROWS.replace("1", "2")  # of the same size
GONE = r"gone while it was read\. Run the command again, when nothing writes to the source\."


def change_while_read(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, file: Path, at_end: str
) -> None:
    """Other content is in `file` while `module.name` yields rows, and `at_end` afterwards."""
    read = getattr(module, name)

    def changing(*arguments: Any) -> Iterator[Any]:
        file.write_text(OTHER)
        yield from read(*arguments)
        file.write_text(at_end)

    monkeypatch.setattr(module, name, changing)


def remove_after(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, file: Path) -> None:
    """Remove `file` when `module.name` has returned."""
    call = getattr(module, name)

    def removing(*arguments: Any) -> Any:
        result = call(*arguments)
        file.unlink(missing_ok=True)
        return result

    monkeypatch.setattr(module, name, removing)


def first_column(source: Any, folder: Path, name: str) -> list[Any]:
    files = source.fetch(folder)
    numbers = range(source.count(files, ""))
    return [row[name] for batch in source.read(files, "", numbers) for row in batch.to_pylist()]


@pytest.mark.parametrize("at_end", [OTHER, ROWS], ids=["other bytes", "the first bytes again"])
def test_no_copy_is_kept_of_a_table_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_end: str
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(ROWS)
    source = Table(file, "y", types={"a": "number"})
    with monkeypatch.context() as patch:
        change_while_read(patch, ingest, "blocks", file, at_end)
        with pytest.raises(
            DataError, match=r"rows\.csv: changed while it was read\. Run the command again\."
        ):
            source.fetch(tmp_path / "home")
    assert not list((tmp_path / "home").rglob("*.parquet"))
    file.write_text(ROWS)
    assert first_column(source, tmp_path / "home", "feature.a") == list(range(40))


@pytest.mark.frameworks
@pytest.mark.parametrize("at_end", [OTHER, ROWS], ids=["other bytes", "the first bytes again"])
@pytest.mark.parametrize("target", [None, "y"])
@pytest.mark.parametrize("layout", ["table", "lines"])
def test_no_copy_is_kept_of_texts_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_end: str, target: str | None, layout: str
) -> None:
    pytest.importorskip("tokenizers", reason="install the extras by: make setup EXTRAS=all")
    from training.data.sources import text
    from training.data.text import plain_texts

    root = tmp_path / "data"
    root.mkdir()
    file = root / ("rows.csv" if layout == "table" else "rows.txt")
    file.write_text(ROWS)
    if layout == "lines":
        (root / "words.txt").write_text("a word\n")
    module: ModuleType = ingest if target else plain_texts
    name = "blocks"
    if layout == "lines":
        module, name = text, "class_batches"
    source = text.Text(root, text="a", target=target)
    with monkeypatch.context() as patch:
        change_while_read(patch, module, name, file, at_end)
        with pytest.raises(DataError, match=r"rows\.\w+: changed while it was read"):
            source.fetch(tmp_path / "home")
    assert not list((tmp_path / "home").rglob("*.parquet"))
    file.write_text(ROWS)
    expected = ROWS.splitlines() if layout == "lines" else [str(row) for row in range(40)]
    assert set(expected) <= set(first_column(source, tmp_path / "home", "feature.a"))


def of_table(folder: Path, suffix: str) -> tuple[Any, Path]:
    file = folder / f"rows{suffix}"
    if suffix == ".csv":
        file.write_text(ROWS)
    else:
        pq.write_table(pa.table({"a": range(40), "y": range(40)}), file)
    return Table(file, "y"), file


def of_images(folder: Path, source: type[ParquetImages]) -> tuple[Any, Path]:
    file = folder / "rows.parquet"
    images = pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((4, 8, 8), np.uint8))
    pq.write_table(pa.table({"image": images, "label": range(4)}), file)
    return source(file), file


def of_folder(folder: Path) -> tuple[Any, Path]:
    root = folder / "images"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        (root / name / "1.png").write_bytes(name.encode())
    return ImageFolder(root), root / "cat" / "1.png"


def of_targets(folder: Path) -> tuple[Any, Path]:
    source, file = of_folder(folder)
    (source.path / "metadata.csv").write_text("file_name,age\ncat/1.png,1\ndog/1.png,2\n")
    return ImageFolder(source.path, target="age"), file


Made = tuple[Callable[[Path], tuple[Any, Path]], ModuleType, str]
VANISHING: dict[str, Made] = {
    "a table before the digest": (lambda folder: of_table(folder, ".csv"), table, "find_files"),
    "a table before the rows": (lambda folder: of_table(folder, ".csv"), ingest, "_agreed_names"),
    "a table before the header": (lambda folder: of_table(folder, ".csv"), table, "find_copy"),
    "a Parquet table before the rows": (lambda folder: of_table(folder, ".pq"), ingest, "_check_named"),
    "a table before the second digest": (lambda folder: of_table(folder, ".pq"), typed_copy, "record_text"),
    "images in Parquet": (lambda folder: of_images(folder, ParquetImages), parquet, "find_files"),
    "images in Parquet before the labels": (
        lambda folder: of_images(folder, ParquetImages),
        parquet,
        "class_names",
    ),
    "images with numbers": (lambda folder: of_images(folder, ParquetTargets), parquet_targets, "find_files"),
    "a folder of images": (of_folder, folder_listing, "_agreed_classes"),
    "a folder of images with numbers": (of_targets, folder_listing, "_hash_part"),
}


@pytest.mark.parametrize("what", VANISHING)
def test_a_file_that_vanishes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    make, module, name = VANISHING[what]
    source, file = make(tmp_path)
    if name == "_hash_part":
        call = folder_listing._hash_part

        def removing(part: list[tuple[str, str, str]]) -> list[folder_listing.ImageFile]:
            file.unlink()
            return call(part)

        monkeypatch.setattr(module, name, removing)
    else:
        remove_after(monkeypatch, module, name, file)
    with pytest.raises(DataError, match=rf"{file}: {GONE}"):
        source.fetch(tmp_path / "home")


@pytest.mark.frameworks
@pytest.mark.parametrize("name", ["find_text_files", "find_copy"])
def test_a_text_that_vanishes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pytest.importorskip("tokenizers", reason="install the extras by: make setup EXTRAS=all")
    from training.data.sources import text

    file = tmp_path / "rows.txt"
    file.write_text("some words\n")
    remove_after(monkeypatch, text, name, file)
    with pytest.raises(DataError, match=rf"{file}: {GONE}"):
        text.Text(file, target=None).fetch(tmp_path / "home")


def test_a_file_and_a_link_to_the_file_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "1.csv").write_text(ROWS)
    (folder / "2.csv").write_text(OTHER)
    source = Table(folder, "y", types={"a": "number"})
    source.fetch(tmp_path / "copies")
    assert "same bytes" not in caplog.text
    (folder / "latest.csv").symlink_to("1.csv")
    source.fetch(tmp_path / "copies")
    assert f"such as {folder / '1.csv'} and {folder / 'latest.csv'}: their rows count twice" in caplog.text
