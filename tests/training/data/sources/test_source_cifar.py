"""CIFAR-10's binary files: colour planes become pixels, and a damaged file is refused by name."""

from pathlib import Path

import numpy as np
import pytest
from small_sources import publish_cifar, write_cifar

from training.data.sources.cifar import CLASSES, SHA256, Cifar10
from training.errors import DataError, TransientError


def check_rows(files, arrays, rows_of, pixels_of) -> None:
    for split, (images, labels) in arrays.items():
        rows = rows_of(files, split)
        assert [row["label"] for row in rows] == [CLASSES[label] for label in labels]
        assert all(np.array_equal(pixels_of(row), image) for row, image in zip(rows, images, strict=True))


@pytest.mark.parametrize("inside", [".", "cifar-10-batches-bin"])
def test_planes_become_pixels(tmp_path: Path, inside: str, rows_of, pixels_of) -> None:
    arrays = write_cifar(tmp_path / "data" / inside)
    files = Cifar10(tmp_path / "data").fetch(tmp_path / "home")
    check_rows(files, arrays, rows_of, pixels_of)
    assert (files.classes, files.files) == (CLASSES, 6)


def test_rows_are_numbered_in_each_file(tmp_path: Path, rows_of) -> None:
    write_cifar(tmp_path / "data")
    files = Cifar10(tmp_path / "data").fetch(tmp_path)
    assert [row["where"] for row in rows_of(files, "train", [3, 4, 14])] == [
        "data_batch_1.bin row 3",
        "data_batch_2.bin row 0",
        "data_batch_5.bin row 4",
    ]


def test_downloaded_once_and_watched(site, tmp_path: Path, rows_of, pixels_of) -> None:
    arrays = write_cifar(tmp_path / "theirs")
    source = publish_cifar(site, tmp_path / "theirs")
    files = source.fetch(tmp_path / "home")
    check_rows(files, arrays, rows_of, pixels_of)
    assert source.fetch(tmp_path / "home") == files
    assert site.requests == ["/moved", "/cifar"]
    file = Path(files.root) / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    with pytest.raises(DataError, match=r"test_batch\.bin: changed since it was unpacked"):
        source.fetch(tmp_path / "home")


def test_the_official_archive_is_pinned(site, tmp_path: Path) -> None:
    with pytest.raises(TransientError, match=SHA256):
        Cifar10(urls=(site.give("/cifar", b"not it"),), size=None).fetch(tmp_path)
    assert not list(tmp_path.rglob("*.gz"))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda _: b"", "0 bytes"),
        (lambda content: content[:-1], "cut short or damaged"),
        (lambda content: b"\x0a" + content[1:], "row 0: label 10"),
    ],
)
def test_damage_is_refused_by_name(tmp_path: Path, change, rule: str) -> None:
    write_cifar(tmp_path / "data")
    file = tmp_path / "data" / "data_batch_3.bin"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DataError, match=rule) as caught:
        Cifar10(tmp_path / "data").fetch(tmp_path)
    assert str(file) in str(caught.value)
