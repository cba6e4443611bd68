"""Parquet sources: every column type is read pixel for pixel, and bad cells are reported by row."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from small_runs import prepared

from training.data.sources import parquet_files
from training.data.sources.parquet import ParquetImages
from training.errors import DataError
from training.storage.paths import Home

IMAGES = np.random.default_rng(2).integers(0, 256, (12, 5, 4, 3)).astype(np.uint8)
LABELS = ["cat", "dog"] * 6


def tensors(values: np.ndarray) -> pa.Array:
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))


def write(file: Path, images: Any, labels: Any = LABELS, **more: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": images, "label": labels, **more}), file, row_group_size=5)
    return file


def nested(depth_type: pa.DataType, values: np.ndarray) -> pa.Array:
    return pa.array(values.tolist(), depth_type)


def deep(inner: pa.DataType, depth: int) -> pa.DataType:
    return inner if depth == 0 else pa.list_(deep(inner, depth - 1))


COLUMNS = {
    "tensor": (tensors(IMAGES), IMAGES),
    "tensor, channels first": (tensors(IMAGES.transpose(0, 3, 1, 2)), IMAGES),
    "tensor, grey": (tensors(IMAGES[..., 0]), IMAGES[..., :1]),
    "tensor, float": (tensors(IMAGES.astype(np.float32)), IMAGES),
    "tensor, int64": (tensors(IMAGES.astype(np.int64)), IMAGES),
    "lists": (nested(deep(pa.uint8(), 3), IMAGES), IMAGES),
    "lists, grey": (nested(deep(pa.float64(), 2), IMAGES[..., 1]), IMAGES[..., 1:2]),
    "lists, large": (nested(pa.large_list(deep(pa.int16(), 2)), IMAGES), IMAGES),
    "lists, fixed": (nested(pa.list_(pa.list_(deep(pa.uint8(), 1), 4), 5), IMAGES), IMAGES),
}


@pytest.mark.parametrize("column", COLUMNS)
def test_pixels_come_back(tmp_path: Path, column: str, rows_of, pixels_of) -> None:
    values, expected = COLUMNS[column]
    file = write(tmp_path / "data.parquet", values)
    files = ParquetImages(file).fetch(tmp_path / "home")
    rows = rows_of(files, "")
    assert [row["label"] for row in rows] == LABELS
    assert all(np.array_equal(pixels_of(row), image) for row, image in zip(rows, expected, strict=True))
    assert rows[7]["where"] == f"{file} row 7"
    for chosen in ([11, 0, 6, 6, 5, 1], [0, 4, 5, 11], []):
        assert rows_of(files, "", chosen) == [rows[row] for row in chosen]


def test_images_of_different_sizes(tmp_path: Path, rows_of, pixels_of) -> None:
    images = [IMAGES[0], IMAGES[1, :3], IMAGES[2, :, :2]]
    column = pa.array([image.tolist() for image in images], deep(pa.uint8(), 3))
    files = ParquetImages(write(tmp_path / "data.parquet", column, ["a", "b", "a"])).fetch(tmp_path)
    for row, image in zip(rows_of(files, ""), images, strict=True):
        assert np.array_equal(pixels_of(row), image)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_encoded_files(tmp_path: Path, kind: pa.DataType, rows_of) -> None:
    contents = [f"file {number}".encode() for number in range(12)]
    files = ParquetImages(write(tmp_path / "data.parquet", pa.array(contents, kind))).fetch(tmp_path)
    rows = rows_of(files, "")
    assert [row["image"] for row in rows] == contents
    assert {(row["height"], row["width"], row["channels"]) for row in rows} == {(0, 0, 0)}


def test_hugging_face_layout(tmp_path: Path, rows_of) -> None:
    """Structs of bytes and path, integer labels with names in the schema, splits in file names."""
    feature = {"names": ["zero", "one"], "_type": "ClassLabel"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
    for split in ("train", "test"):
        cells = pa.array([{"bytes": f"{split} {number}".encode(), "path": "x.png"} for number in range(4)])
        table = pa.table({"image": cells, "label": [0, 1, 1, 0]}).replace_schema_metadata(metadata)
        pq.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet")
    source = ParquetImages(tmp_path)
    files = source.fetch(tmp_path / "home")
    assert files.classes == ("zero", "one")
    assert list(source.splits(files)) == ["train", "test"]
    rows = rows_of(files, "test")
    assert [(row["image"], row["label"]) for row in rows][:2] == [(b"test 0", "zero"), (b"test 1", "one")]


def test_split_column(tmp_path: Path, rows_of, pixels_of) -> None:
    splits = ["train", "train", "test"] * 4
    source = ParquetImages(write(tmp_path / "data.parquet", tensors(IMAGES), split=splits))
    files = source.fetch(tmp_path)
    assert [source.count(files, split) for split in source.splits(files)] == [8, 4]
    for split in ("train", "test"):
        rows = rows_of(files, split)
        expected = IMAGES[[row_split == split for row_split in splits]]
        assert all(np.array_equal(pixels_of(row), image) for row, image in zip(rows, expected, strict=True))
    assert rows_of(files, "test", [3, 0])[0]["where"].endswith("row 11")


def test_split_folders_ordered_by_content(tmp_path: Path, rows_of) -> None:
    parts = {"train": (0, 4, 8), "test": (8, 12)}
    digests, contents = [], []
    for folder, names in ((tmp_path / "one", "abc"), (tmp_path / "two", "cab")):
        for split, bounds in parts.items():
            for name, start, stop in zip(names, bounds, bounds[1:], strict=False):
                write(folder / split / f"{name}.parquet", tensors(IMAGES[start:stop]), LABELS[start:stop])
        files = ParquetImages(folder).fetch(tmp_path / "home")
        assert files.files == 3
        digests.append(files.digest)
        contents.append([row["image"] for split in parts for row in rows_of(files, split)])
    assert digests[0] == digests[1]
    assert contents[0] == contents[1]
    assert sorted(contents[0]) == sorted(image.tobytes() for image in IMAGES)


def test_integer_labels(tmp_path: Path, rows_of) -> None:
    file = write(tmp_path / "data.parquet", tensors(IMAGES), [10, 2] * 6)
    assert ParquetImages(file).fetch(tmp_path).classes == ("2", "10")
    named = ParquetImages(file, classes=tuple("abcdefghijk")).fetch(tmp_path)
    assert rows_of(named, "", [0, 1])[0]["label"] == "k"


def test_other_columns_and_categories(tmp_path: Path, rows_of, pixels_of) -> None:
    categories = pa.array(LABELS).dictionary_encode()
    table = pa.table({"picture": tensors(IMAGES), "kind": categories, "image": pa.nulls(12)})
    pq.write_table(table, tmp_path / "data.parquet")
    files = ParquetImages(tmp_path / "data.parquet", image="picture", label="kind").fetch(tmp_path)
    rows = rows_of(files, "")
    assert [row["label"] for row in rows] == LABELS
    assert np.array_equal(pixels_of(rows[-1]), IMAGES[-1])


def spoilt(value: float, kind: type = np.float32) -> np.ndarray:
    images = IMAGES.astype(kind)
    images[8, 2, 2, 1] = value
    return images


def with_cell(values: list[Any], kind: pa.DataType, cell: Any) -> pa.Array:
    return pa.array([*values[:8], cell, *values[9:]], kind)


LISTS = IMAGES[..., 0].tolist()
BAD_CELLS = {
    "NaN": (tensors(spoilt(np.nan)), "NaN"),
    "infinite": (tensors(spoilt(np.inf)), "infinite"),
    "negative": (tensors(spoilt(-1, np.int16)), "outside of 0 to 255"),
    "too large": (tensors(spoilt(256, np.int16)), "outside of 0 to 255"),
    "shares": (
        tensors(np.concatenate([IMAGES[:8], IMAGES[8:9] / 255, IMAGES[9:]]).astype(np.float32)),
        "multiply by 255",
    ),
    "null tensor": (
        pa.ExtensionArray.from_storage(
            tensors(IMAGES).type,
            with_cell(IMAGES.reshape(12, -1).tolist(), tensors(IMAGES).type.storage_type, None),
        ),
        "is null",
    ),
    "null list": (with_cell(LISTS, deep(pa.uint8(), 2), None), "is null"),
    "null pixel": (with_cell(LISTS, deep(pa.uint8(), 2), [[1, None, 3, 4]] * 5), "pixel that is null"),
    "NaN in lists": (with_cell(LISTS, deep(pa.float32(), 2), [[1, float("nan"), 3, 4]] * 5), "NaN"),
    "ragged": (with_cell(LISTS, deep(pa.uint8(), 2), [[1, 2], [3]]), "ragged"),
    "null in lists": (with_cell(LISTS, deep(pa.uint8(), 2), [[1, 2], None]), "ragged"),
    "no rows": (with_cell(LISTS, deep(pa.uint8(), 2), []), "ragged"),
    "no columns": (with_cell(LISTS, deep(pa.uint8(), 2), [[], []]), "ragged"),
    "path only": (
        with_cell(
            [{"bytes": b"x"}] * 12, pa.struct({"bytes": pa.binary(), "path": pa.string()}), {"path": "x.png"}
        ),
        "no bytes",
    ),
}


@pytest.mark.parametrize("bad", BAD_CELLS)
def test_bad_cells_are_refused_by_row(tmp_path: Path, bad: str, rows_of) -> None:
    column, rule = BAD_CELLS[bad]
    file = write(tmp_path / "data.parquet", column)
    files = ParquetImages(file).fetch(tmp_path)
    with pytest.raises(DataError) as caught:
        rows_of(files, "")
    assert f"{file} row 8: " in str(caught.value)
    assert rule in str(caught.value)


@pytest.mark.parametrize("content", [None, b""])
def test_an_image_without_bytes_is_a_row_that_can_be_left_out(
    home: Home, tmp_path: Path, content: bytes | None
) -> None:
    encoded = []
    for pixels in np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), np.uint8):
        Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
        encoded.append(file.getvalue())
    images = pa.array([*encoded[:8], content, *encoded[9:]], pa.binary())
    pq.write_table(pa.table({"image": images, "label": ["a", "b"] * 30}), tmp_path / "data.parquet")
    with pytest.raises(DataError, match=r"row 8: has zero bytes(.|\n)*data\.max_dropped_share"):
        prepared(home, ParquetImages(tmp_path / "data.parquet"))
    version = prepared(home, ParquetImages(tmp_path / "data.parquet"), data={"max_dropped_share": 0.1})
    assert version.rows("train") + version.rows("test") == 59
    (left_out,) = version.dropped
    assert "row 8" in left_out


def test_rows_beside_a_bad_one_can_be_read(tmp_path: Path, rows_of) -> None:
    file = write(tmp_path / "data.parquet", BAD_CELLS["NaN"][0])
    assert len(rows_of(ParquetImages(file).fetch(tmp_path), "", [0, 7, 9])) == 3


BAD_COLUMNS = {
    "flat": (pa.array(IMAGES.reshape(12, -1).tolist(), deep(pa.uint8(), 1)), "no height and width"),
    "too deep": (tensors(IMAGES[:, None]), "has shape"),
    "many channels": (tensors(np.zeros((12, 6, 5, 7), np.uint8)), "has shape"),
    "strings": (pa.array(["a.png"] * 12), "is of type string"),
    "lists of strings": (pa.array([[["x"]]] * 12), "pixels of type string"),
}


@pytest.mark.parametrize("bad", BAD_COLUMNS)
def test_columns_without_images_are_refused_at_once(tmp_path: Path, bad: str) -> None:
    column, rule = BAD_COLUMNS[bad]
    file = write(tmp_path / "data.parquet", column)
    with pytest.raises(DataError, match=rule) as caught:
        ParquetImages(file).fetch(tmp_path / "home")
    assert str(file) in str(caught.value)
    assert not (tmp_path / "home").exists()


BAD_LABELS = {
    "null": ([*LABELS[:5], None, *LABELS[6:]], "row 5: column 'label' is null", ()),
    "empty": ([*LABELS[:5], "", *LABELS[6:]], "row 5: label ''", ()),
    "undeclared": (LABELS, "row 1: label 'dog' is not among cat, fox", ("cat", "fox")),
    "beyond the classes": ([0, 1, 2] * 4, "row 2: label 2; integer labels must be 0 to 1", ("cat", "dog")),
    "negative": ([0, -1] * 6, "row 1: label -1", ()),
    "float": ([0.5] * 12, "is of type double", ()),
}


@pytest.mark.parametrize("bad", BAD_LABELS)
def test_bad_labels_are_refused_by_row(tmp_path: Path, bad: str) -> None:
    labels, rule, classes = BAD_LABELS[bad]
    file = write(tmp_path / "data.parquet", tensors(IMAGES), labels)
    with pytest.raises(DataError) as caught:
        ParquetImages(file, classes=classes).fetch(tmp_path / "home")
    assert str(file) in str(caught.value)
    assert rule in str(caught.value)


@pytest.mark.parametrize("column", ["image", "label"])
def test_a_missing_column_lists_those_there_are(tmp_path: Path, column: str) -> None:
    table = pa.table({"image": tensors(IMAGES), "label": LABELS, "other": LABELS}).drop_columns([column])
    pq.write_table(table, tmp_path / "data.parquet")
    with pytest.raises(DataError, match=f"no column {column!r}; there are .*other"):
        ParquetImages(tmp_path / "data.parquet").fetch(tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 0.5, -1])
def test_truncated_file_is_named(tmp_path: Path, keep: float) -> None:
    file = write(tmp_path / "data.parquet", tensors(IMAGES))
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content)) if keep == 0.5 else int(keep)])
    with pytest.raises(DataError, match=r"data\.parquet: not a whole Parquet file"):
        ParquetImages(file).fetch(tmp_path)


def test_damage_between_header_and_footer_is_named(tmp_path: Path, rows_of) -> None:
    file = tmp_path / "data.parquet"
    table = pa.table({"image": tensors(IMAGES), "label": LABELS})
    pq.write_table(table, file, compression="zstd", write_page_checksum=True, use_dictionary=False)
    files = ParquetImages(file).fetch(tmp_path)
    content = bytearray(file.read_bytes())
    content[20:200] = bytes(180)
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"data\.parquet"):
        rows_of(files, "")


def test_files_that_change_are_named(tmp_path: Path, rows_of) -> None:
    file = write(tmp_path / "data.parquet", tensors(IMAGES))
    files = ParquetImages(file).fetch(tmp_path)
    write(file, tensors(IMAGES[:6]), LABELS[:6])
    with pytest.raises(DataError, match="changed since"):
        rows_of(files, "", [0])


def test_rows_without_a_clear_split_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "third.parquet", tensors(IMAGES), split=["train", "dev", "test"] * 4)
    with pytest.raises(DataError, match="row 1: split 'dev'"):
        ParquetImages(tmp_path / "third.parquet").fetch(tmp_path)
    write(tmp_path / "one.parquet", tensors(IMAGES), split=["train"] * 12)
    with pytest.raises(DataError, match="rows of train only"):
        ParquetImages(tmp_path / "one.parquet").fetch(tmp_path)
    write(tmp_path / "half" / "train" / "a.parquet", tensors(IMAGES))
    with pytest.raises(DataError, match="test/ or test-"):
        ParquetImages(tmp_path / "half").fetch(tmp_path)
    write(tmp_path / "half" / "test" / "a.parquet", tensors(IMAGES), split=["train"] * 12)
    with pytest.raises(DataError, match="row 0: split 'train'; it must be test"):
        ParquetImages(tmp_path / "half").fetch(tmp_path)
    write(tmp_path / "half" / "b.parquet", tensors(IMAGES))
    with pytest.raises(DataError, match=r"b\.parquet: beside"):
        ParquetImages(tmp_path / "half").fetch(tmp_path)
    write(tmp_path / "empty.parquet", tensors(IMAGES).slice(0, 0), pa.array([], pa.string()))
    with pytest.raises(DataError, match="has no rows"):
        ParquetImages(tmp_path / "empty.parquet").fetch(tmp_path)


def named(file: Path, names: list[str], labels: list[int]) -> None:
    """A file with integer labels, whose names Hugging Face's `datasets` wrote into the schema."""
    feature = {"names": names, "_type": "ClassLabel"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
    table = pa.table({"image": [b"1", b"2"], "label": labels}).replace_schema_metadata(metadata)
    file.parent.mkdir(exist_ok=True)
    pq.write_table(table, file)


def labels_of(source: ParquetImages, home: Path, rows_of: Any) -> dict[str, list[str]]:
    files = source.fetch(home)
    return {split: [row["label"] for row in rows_of(files, split)] for split in source.splits(files)}


def test_integer_labels_have_the_names_of_their_own_file(tmp_path: Path, rows_of) -> None:
    data = tmp_path / "data"
    named(data / "train-1.parquet", ["cat", "dog"], [0, 1])
    named(data / "test-1.parquet", ["dog", "cat"], [0, 1])
    right = {"train": ["cat", "dog"], "test": ["dog", "cat"]}
    assert labels_of(ParquetImages(data), tmp_path / "home", rows_of) == right
    declared = ParquetImages(data, classes=("dog", "cat"))
    assert labels_of(declared, tmp_path / "home", rows_of) == right
    assert declared.fetch(tmp_path / "home").classes == ("dog", "cat")


def test_files_that_name_different_classes_are_refused_unless_the_recipe_declares_them(
    tmp_path: Path, rows_of, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    named(data / "train-1.parquet", ["cat", "dog"], [0, 1])
    named(data / "test-1.parquet", ["cat", "cow"], [0, 1])
    with pytest.raises(DataError, match=r"names the classes cat, .*; the schema of .* names cat, "):
        ParquetImages(data).fetch(tmp_path / "home")
    declared = ParquetImages(data, classes=("katze", "hund"))
    expected = {"train": ["katze", "hund"], "test": ["katze", "hund"]}
    assert labels_of(declared, tmp_path / "home", rows_of) == expected
    assert (
        "its schema names the classes cat, cow; integer labels are read as the declared classes"
        in caplog.text
    )


@pytest.mark.parametrize(("size", "rows"), [(10, 50), (10_000, 6), (100_000, 1)])
def test_large_images_are_read_in_smaller_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, rows: int
) -> None:
    monkeypatch.setattr(parquet_files, "_READ_BYTES", 65_000)
    values = [{"bytes": os.urandom(size), "path": "a.png"} for _ in range(60)]
    pq.write_table(
        pa.table({"image": values, "label": [os.urandom(99) for _ in values]}), tmp_path / "a.parquet"
    )
    with parquet_files.open_parquet(tmp_path / "a.parquet") as parquet:
        assert parquet_files.rows_to_read(parquet, 0, "image", most=50) == rows
