"""A source with its own validation split: its rows validate each epoch, or are ignored on request."""

from pathlib import Path

import numpy as np
import pytest
from pets import Pixels, random_pixels, write_rows
from PIL import Image
from small_runs import prepared

from training.data.dataset import Columns, fingerprint, open_columns
from training.data.sources.folder import ImageFolder
from training.data.sources.parquet import ParquetImages
from training.errors import DataError
from training.records import DatasetVersion
from training.settings.schema import DataSettings, ScalingSettings, Settings
from training.storage.paths import Home
from training.trainers.rows import training_rows
from training.trainers.torch.settings import TrainingSettings

SETTINGS = Settings(scaling=ScalingSettings(num_workers=0), training=TrainingSettings(global_batch_size=2))


@pytest.fixture(params=["val", "valid", "validation"])
def with_validation(request: pytest.FixtureRequest, images: Path) -> Path:
    """The image folder with a validation split of three images beside train/ and test/."""
    for number, pixels in enumerate(validation_images()):
        file = images / request.param / ("cat" if number else "dog") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    return images


def validation_images() -> Pixels:
    return random_pixels(3, seed=7)


def validated_on(version: DatasetVersion) -> tuple[Columns, list[list[int]]]:
    """The train split, and the pixels of its validation rows, sorted."""
    columns = open_columns(version, "train")
    learn, validate = training_rows(columns, SETTINGS)
    assert sorted([*learn, *validate]) == list(range(len(columns)))
    return columns, sorted(columns.inputs[validate].transpose(0, 2, 3, 1).reshape(len(validate), -1).tolist())


def test_the_folder_val_validates(home: Home, with_validation: Path) -> None:
    version = prepared(home, ImageFolder(with_validation), "pets")
    columns, pixels = validated_on(version)
    assert (len(columns), version.validation_rows, version.rows("test")) == (4 + 3, 3, 2)
    assert pixels == sorted(validation_images().reshape(3, -1).tolist())


def test_the_folder_val_is_ignored_on_request(home: Home, with_validation: Path) -> None:
    version = prepared(home, ImageFolder(with_validation), "pets", {"validation_split": "ignore"})
    columns = open_columns(version, "train")
    assert (len(columns), version.validation_rows, columns.validation) == (4, None, None)


def test_the_choice_counts_only_for_a_source_with_a_validation_split(home: Home, images: Path) -> None:
    files = ImageFolder(images).fetch(home.sources / "pets")
    assert fingerprint(files, DataSettings()) == fingerprint(files, DataSettings(validation_split="ignore"))


def test_two_validation_folders_are_refused(home: Home, with_validation: Path) -> None:
    for name in ("val", "valid", "validation"):
        (with_validation / name).mkdir(exist_ok=True)
    with pytest.raises(DataError, match="a second validation split beside"):
        prepared(home, ImageFolder(with_validation), "pets")


def test_val_without_test_names_the_remedy(home: Home, with_validation: Path) -> None:
    (with_validation / "test").rename(with_validation.parent / "elsewhere")
    with pytest.raises(
        DataError, match=r"test: missing, though train/ has class folders\. Rename val\w*/ to test/"
    ):
        prepared(home, ImageFolder(with_validation), "pets")


@pytest.mark.parametrize("kept", ["refuse", "drop"])
def test_a_training_image_in_val_is_a_copy(home: Home, with_validation: Path, kept: str) -> None:
    folder = next(path for path in with_validation.iterdir() if path.name.startswith("val"))
    (folder / "dog/copy.png").write_bytes((with_validation / "train/dog/0.png").read_bytes())
    if kept == "refuse":
        with pytest.raises(DataError, match="1 image is in more than one split"):
            prepared(home, ImageFolder(with_validation), "pets")
        return
    version = prepared(home, ImageFolder(with_validation), "pets", {"duplicates": "drop"})
    assert [reason.partition(":")[0] for reason in version.dropped] == [str(folder / "dog/copy.png")]
    assert (version.rows("train"), version.validation_rows) == (4 + 3, 3)
    assert len(validated_on(version)[1]) == 3


def test_parquet_with_a_split_column(home: Home, tmp_path: Path) -> None:
    pixels = random_pixels(30)
    splits = ["train", "validation", "test"] * 10
    file = write_rows(
        tmp_path / "rows.parquet", pixels, ["cat", "cat", "cat", "dog", "dog", "dog"] * 5, split=splits
    )
    version = prepared(home, ParquetImages(file), "pets")
    assert validated_on(version)[1] == sorted(pixels[1::3].reshape(10, -1).tolist())


def test_parquet_files_named_as_hugging_face_does(home: Home, tmp_path: Path) -> None:
    for number, split in enumerate(("train", "validation", "test")):
        file = tmp_path / f"{split}-00000-of-00001.parquet"
        write_rows(file, random_pixels(10, seed=number), ["cat", "dog"] * 5)
    version = prepared(home, ParquetImages(tmp_path), "pets")
    assert np.array_equal(
        validated_on(version)[1], sorted(random_pixels(10, seed=1).reshape(10, -1).tolist())
    )
