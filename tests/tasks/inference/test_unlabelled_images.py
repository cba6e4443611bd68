"""Parquet images stored as pixels are decoded in bulk, without a step per row; the rows must be the same."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tasks.inference.unlabelled_images import find_chunks, read_chunk
from training.data.dataset import open_columns
from training.data.sources.parquet_pixels import all_pixels
from training.errors import DataError
from training.records import ImageShape

IMAGES = np.random.default_rng(0).integers(0, 256, (1200, 5, 4, 3), np.uint8)  # rows, height, width, channels
FIRST = np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2))


def read(path: Path, shape: ImageShape) -> tuple[list[str], np.ndarray]:
    batches = [batch for chunk in find_chunks(path) for batch in read_chunk(chunk, shape)]
    assert not any(any(batch["error"]) for batch in batches)
    return [where for batch in batches for where in batch["where"]], np.concatenate(
        [batch["inputs"] for batch in batches]
    )


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        pytest.param(IMAGES, (3, 5, 4), id="channels last"),
        pytest.param(FIRST, (3, 5, 4), id="channels first"),
        pytest.param(np.ascontiguousarray(IMAGES[..., 0]), (1, 5, 4), id="grey"),
    ],
)
def test_tensors_of_the_models_shape(tmp_path: Path, given: np.ndarray, shape: ImageShape) -> None:
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(given)
    assert all_pixels(column, shape) is not None
    pq.write_table(pa.table({"image": column}), tmp_path / "a.parquet", row_group_size=1000)
    where, images = read(tmp_path, shape)
    assert np.array_equal(images, FIRST[:, : shape[0]])
    assert where == [f"a.parquet:{row}" for row in range(1200)]


def test_a_slice_of_tensors_or_bytes_is_its_own_rows() -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(IMAGES).slice(7, 11)
    binary = pa.array([image.tobytes() for image in FIRST], pa.binary(60)).slice(7, 11)
    for column in (tensors, binary):
        assert np.array_equal(all_pixels(column, (3, 5, 4)), FIRST[7:18])


def test_nulls_and_other_shapes_are_looked_at_one_by_one() -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(IMAGES[:3])
    assert all_pixels(tensors, (3, 4, 5)) is None
    assert (
        all_pixels(pa.FixedShapeTensorArray.from_numpy_ndarray(IMAGES[:3].astype(float)), (3, 5, 4)) is None
    )
    assert all_pixels(pa.array([b"a" * 60, None], pa.binary(60)), (3, 5, 4)) is None
    assert all_pixels(pa.array([b"file"]), (1, 2, 2)) is None


def test_a_null_among_pixels_is_named_and_leaves_the_others(tmp_path: Path) -> None:
    contents = [image.tobytes() for image in FIRST[:3]]
    table = pa.table({"image": pa.array([contents[0], None, contents[2]], pa.binary(60))})
    pq.write_table(table, tmp_path / "a.parquet")
    (batch,) = [batch for chunk in find_chunks(tmp_path) for batch in read_chunk(chunk, (3, 5, 4))]
    assert batch["error"].tolist() == ["", f"{tmp_path / 'a.parquet'} row 1: is null", ""]
    assert np.array_equal(batch["inputs"][[0, 2]], FIRST[[0, 2]])


def test_part_files_of_a_dataset_version(digits_version) -> None:
    folder = Path(digits_version.path) / "test"
    where, images = read(folder, digits_version.shape)
    assert np.array_equal(images, open_columns(digits_version, "test").inputs)
    assert len(set(where)) == len(images)
    with pytest.raises(DataError, match=r"64 bytes an image; the model takes \(1, 28, 28\).*784 bytes"):
        read(folder, (1, 28, 28))


def test_an_image_of_16_bits_is_a_bad_row(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 5000, np.uint16)).save(tmp_path / "deep.png")
    (batch,) = read_chunk(*find_chunks(tmp_path), (1, 4, 4))
    (error,) = batch["error"]
    assert error.startswith(f"{tmp_path / 'deep.png'}: has colour mode I;16")
    assert error.endswith("convert the image to 8 bits")
