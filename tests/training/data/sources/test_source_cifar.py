"""CIFAR-10's binary files: colour planes become pixels, and a damaged file is refused by name."""

import hashlib
import tarfile
from pathlib import Path

import numpy as np
import pytest

from training.data.sources.cifar import CLASSES, FILES, SHA256, Cifar10
from training.errors import DataError

RECORDS = {"train": (4, 3, 1, 2, 5), "test": (3,)}


def made(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Write six small files; returns images (rows, 32, 32, 3) and labels of each split."""
    random = np.random.default_rng(1)
    folder.mkdir(parents=True)
    arrays = {}
    for split, names in FILES.items():
        images = random.integers(0, 256, (sum(RECORDS[split]), 32, 32, 3)).astype(np.uint8)
        labels = (np.arange(len(images)) % 10).astype(np.uint8)
        records = np.concatenate(
            [labels[:, None], images.transpose(0, 3, 1, 2).reshape(len(images), -1)], axis=1
        )
        for name, part in zip(names, np.split(records, np.cumsum(RECORDS[split])[:-1]), strict=True):
            (folder / name).write_bytes(part.tobytes())
        arrays[split] = images, labels
    return arrays


def check_rows(files, arrays, rows_of, pixels_of) -> None:
    for split, (images, labels) in arrays.items():
        rows = rows_of(files, split)
        assert [row["label"] for row in rows] == [CLASSES[label] for label in labels]
        assert all(np.array_equal(pixels_of(row), image) for row, image in zip(rows, images, strict=True))


@pytest.mark.parametrize("inside", [".", "cifar-10-batches-bin"])
def test_planes_become_pixels(tmp_path: Path, inside: str, rows_of, pixels_of) -> None:
    arrays = made(tmp_path / "data" / inside)
    files = Cifar10(tmp_path / "data").fetch(tmp_path / "home")
    check_rows(files, arrays, rows_of, pixels_of)
    assert (files.classes, files.files) == (CLASSES, 6)


def test_rows_of_several_files_in_the_order_asked(tmp_path: Path, rows_of) -> None:
    made(tmp_path / "data")
    files = Cifar10(tmp_path / "data").fetch(tmp_path)
    everything, chosen = rows_of(files, "train"), [14, 3, 4, 4, 0, 7]
    assert rows_of(files, "train", chosen) == [everything[row] for row in chosen]
    assert [everything[row]["where"] for row in (3, 4, 14)] == [
        "data_batch_1.bin row 3",
        "data_batch_2.bin row 0",
        "data_batch_5.bin row 4",
    ]


def test_downloaded_once_and_watched(site, tmp_path: Path, rows_of, pixels_of) -> None:
    arrays = made(tmp_path / "theirs" / "cifar-10-batches-bin")
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "theirs" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    packed = (tmp_path / "cifar.tar.gz").read_bytes()
    urls = (site.fail("/moved", 302, Location="http://localhost:1/"), site.give("/cifar", packed))
    source = Cifar10(urls=urls, sha256=hashlib.sha256(packed).hexdigest(), size=len(packed))
    files = source.fetch(tmp_path / "home")
    check_rows(files, arrays, rows_of, pixels_of)
    assert source.fetch(tmp_path / "home") == files
    assert site.requests == ["/moved", "/cifar"]
    file = Path(files.root) / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    with pytest.raises(DataError, match=r"test_batch\.bin: changed since it was unpacked"):
        source.fetch(tmp_path / "home")


def test_the_official_archive_is_pinned(site, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=SHA256):
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
    made(tmp_path / "data")
    file = tmp_path / "data" / "data_batch_3.bin"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DataError, match=rule) as caught:
        Cifar10(tmp_path / "data").fetch(tmp_path)
    assert str(file) in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    made(tmp_path / "data")
    (tmp_path / "data" / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4\.bin: missing"):
        Cifar10(tmp_path / "data").fetch(tmp_path)
