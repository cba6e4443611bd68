"""idx files: found, unpacked or downloaded; every kind of wrong file is refused by name."""

import gzip
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_sources import IDX_ROWS, flip, idx_bytes, publish_idx, write_idx

from training.data.sources import idx
from training.data.sources.idx import FILES, IdxFiles
from training.data.sources.published import FASHION_MNIST, MNIST, Publication, publication
from training.errors import DataError, TransientError

CLASSES = tuple("abcdefghij")


def check_rows(files, arrays, rows_of, pixels_of) -> None:
    for split, count in IDX_ROWS.items():
        rows = rows_of(files, split)
        assert len(rows) == count
        for row, image, label in zip(rows, arrays[split, "images"], arrays[split, "labels"], strict=True):
            assert np.array_equal(pixels_of(row)[..., 0], image)
            assert row["label"] == CLASSES[label]
            assert row["split"] == split


@pytest.mark.parametrize("inside", [".", "raw", "FashionMNIST/raw"])
def test_found_in_every_layout(tmp_path: Path, inside: str, rows_of, pixels_of) -> None:
    arrays = write_idx(tmp_path / "data" / inside)
    source = IdxFiles("FashionMNIST", CLASSES, tmp_path / "data")
    files = source.fetch(tmp_path / "home")
    check_rows(files, arrays, rows_of, pixels_of)
    assert files.classes == CLASSES
    assert rows_of(files, "train", [6, 0, 6])[0]["where"] == "train-images-idx3-ubyte row 6"
    assert not (tmp_path / "home").exists()


def test_of_several_data_sets_the_one_of_the_source_is_read(tmp_path: Path) -> None:
    for name in ("FashionMNIST", "MNIST"):
        write_idx(tmp_path / "data" / name / "raw")
    for name in ("FashionMNIST", "MNIST"):
        source = IdxFiles(name, CLASSES, tmp_path / "data")
        assert Path(source.fetch(tmp_path / "home").root) == tmp_path / "data" / name / "raw"
    with pytest.raises(DataError, match=r"several data sets \(FashionMNIST, MNIST\). Give the folder of one"):
        IdxFiles("KMNIST", CLASSES, tmp_path / "data").fetch(tmp_path / "home")


def test_packed_files_are_unpacked_elsewhere(tmp_path: Path, rows_of, pixels_of) -> None:
    arrays = write_idx(tmp_path / "data")
    plain = IdxFiles("MNIST", CLASSES, tmp_path / "data").fetch(tmp_path / "home")
    for file in list((tmp_path / "data").iterdir()):
        (tmp_path / "data" / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    files = IdxFiles("MNIST", CLASSES, tmp_path / "data").fetch(tmp_path / "home")
    check_rows(files, arrays, rows_of, pixels_of)
    assert files.digest == plain.digest
    assert all(file.suffix == ".gz" for file in (tmp_path / "data").iterdir())


IMAGES, LABELS = FILES["train", "images"], FILES["train", "labels"]
DAMAGE = {
    "empty": (IMAGES, lambda _: b"", "0 bytes"),
    "header cut": (LABELS, lambda content: content[:7], "7 bytes"),
    "one byte short": (IMAGES, lambda content: content[:-1], "calls for"),
    "one byte more": (LABELS, lambda content: content + b"\0", "calls for"),
    "still packed": (IMAGES, gzip.compress, "1f8b"),
    "labels as images": (IMAGES, lambda _: idx_bytes(np.zeros(7, np.uint8)) + bytes(9), "00000801"),
    "other type": (IMAGES, lambda content: b"\0\0\x0d\x03" + content[4:], "00000d03"),
    "no rows": (IMAGES, lambda _: idx_bytes(np.zeros((0, 5, 4), np.uint8)), "no images"),
    "other count": (
        IMAGES,
        lambda _: idx_bytes(np.zeros((6, 5, 4), np.uint8)),
        "6 images, but 7 labels",
    ),
    "huge header": (IMAGES, lambda content: content[:4] + b"\xff" * 12 + content[16:], "calls for"),
    "label outside": (LABELS, lambda content: content[:-1] + b"\x0a", "row 6: label 10"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    name, change, rule = DAMAGE[damage]
    write_idx(tmp_path / "data")
    file = tmp_path / "data" / name
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DataError) as caught:
        IdxFiles("MNIST", CLASSES, tmp_path / "data").fetch(tmp_path / "home")
    assert str(file) in str(caught.value)
    assert rule in str(caught.value)


def test_a_folder_without_idx_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="none of the files"):
        IdxFiles("MNIST", CLASSES, tmp_path / "bare").fetch(tmp_path / "home")


def test_numbers_name_the_classes_when_none_are_declared(tmp_path: Path) -> None:
    write_idx(tmp_path / "data")
    assert IdxFiles("MNIST", path=tmp_path / "data").fetch(tmp_path).classes == tuple("0123456")


@pytest.fixture
def published(site, tmp_path: Path) -> tuple[IdxFiles, dict]:
    arrays = write_idx(tmp_path / "theirs")
    publication = publish_idx(site, tmp_path / "theirs")
    return IdxFiles("FashionMNIST", CLASSES, published=publication), arrays


def test_downloaded_once(site, published, tmp_path: Path, rows_of, pixels_of) -> None:
    source, arrays = published
    files = source.fetch(tmp_path / "home")
    check_rows(files, arrays, rows_of, pixels_of)
    assert Path(files.root).relative_to(tmp_path / "home").match("FashionMNIST-*/raw")
    assert not list((tmp_path / "home").rglob("*.gz"))
    asked = len(site.requests)
    assert source.fetch(tmp_path / "home") == files
    assert len(site.requests) == asked


def test_another_publication_of_the_same_name_is_downloaded(site, published, tmp_path: Path) -> None:
    source, _ = published
    files = source.fetch(tmp_path / "home")
    flip(tmp_path / "theirs" / FILES["train", "images"])
    other = IdxFiles("FashionMNIST", CLASSES, published=publish_idx(site, tmp_path / "theirs"))
    assert other.fetch(tmp_path / "home").digest != files.digest
    assert source.fetch(tmp_path / "home") == files


def test_a_failed_download_goes_on_where_it_stopped(site, published, tmp_path: Path) -> None:
    source, _ = published
    last = f"/good/{FILES['test', 'labels']}.gz"
    good = site.answers[last]
    site.fail(last, 503)
    with pytest.raises(TransientError, match="503"):
        source.fetch(tmp_path / "home")
    assert not list((tmp_path / "home").rglob("raw"))
    site.answers[last] = good
    site.requests.clear()
    source.fetch(tmp_path / "home")
    assert [path for path in site.requests if path.startswith("/good")] == [last]


def test_later_damage_to_a_download_is_noticed(published, tmp_path: Path) -> None:
    source, _ = published
    file = Path(source.fetch(tmp_path / "home").root) / FILES["train", "images"]
    flip(file)
    with pytest.raises(DataError, match="changed since it was unpacked"):
        source.fetch(tmp_path / "home")


def test_a_damaged_gz_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "data")
    for file in list((tmp_path / "data").iterdir()):
        (tmp_path / "data" / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes())[:-5])
        file.unlink()
    with pytest.raises(DataError, match=r"ubyte\.gz: damaged or cut short"):
        IdxFiles("MNIST", CLASSES, tmp_path / "data").fetch(tmp_path / "home")
    assert not list((tmp_path / "home").rglob("raw"))


def test_a_file_that_only_its_sha256_tells_apart_is_refused(site, published, tmp_path: Path) -> None:
    source, _ = published
    first, *others = source.published.files
    changed = replace(first, sha256="0" * 64)
    source = replace(source, published=replace(source.published, files=(changed, *others)))
    with pytest.raises(TransientError, match="wrong sha256"):  # the other mirror answers 503
        source.fetch(tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").rglob("*") if path.is_file()] == ["download.lock"]


@pytest.mark.parametrize(("known", "name"), [(MNIST, "MNIST"), (FASHION_MNIST, "FashionMNIST")])
def test_what_is_published_is_pinned(known: Publication, name: str) -> None:
    from torchvision import datasets

    theirs = getattr(datasets, name)
    assert publication(name) == known
    assert [(file.name, file.md5) for file in known.files] == theirs.resources
    assert {file.name.removesuffix(".gz") for file in known.files} == set(FILES.values())
    assert all(file.size and len(file.sha256) == 64 for file in known.files)
    assert len({file.sha256 for file in known.files}) == 4
    assert all(mirror.startswith("https://") for mirror in known.mirrors)


def test_others_come_from_torchvision() -> None:
    from torchvision.datasets import KMNIST

    kmnist = publication("KMNIST")
    assert [(file.name, file.md5) for file in kmnist.files] == KMNIST.resources
    assert all(mirror.startswith("https://") for mirror in kmnist.mirrors)


@pytest.mark.parametrize("name", ["NoSuchSet", "EMNIST", "QMNIST", "CIFAR10"])
def test_what_is_not_published_as_idx_files_is_refused(name: str) -> None:
    """EMNIST is not published as idx files, although its class inherits the URLs of MNIST."""
    with pytest.raises(DataError, match=f"'{name}'"):
        publication(name)


def test_real_fashion_mnist(real_data: Path, tmp_path: Path) -> None:
    source = IdxFiles("FashionMNIST", CLASSES, real_data)
    files = source.fetch(tmp_path)
    assert [source.count(files, split) for split in source.splits(files)] == [60_000, 10_000]
    total = seen = 0
    for batch in source.read(files, "train", range(60_000)):
        values = np.frombuffer(b"".join(batch["image"].to_pylist()), np.uint8)
        total, seen = total + int(values.sum(dtype=np.int64)), seen + len(values)
    assert seen == 60_000 * 28 * 28
    assert round(total / seen / 255, 4) == 0.2860


def test_two_first_downloads_at_once_are_one(
    site, published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock, the second would look for packed files that the first has unpacked and removed."""
    source, _ = published
    entered, unpack = threading.Semaphore(0), idx._unpack

    def slow(packed: Sequence[Path], raw: Path) -> None:
        entered.release()
        time.sleep(0.5)  # in which the other would enter
        unpack(packed, raw)

    monkeypatch.setattr(idx, "_unpack", slow)
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(source.fetch, tmp_path / "home") for _ in range(2))
        assert first.result() == second.result()
    assert entered.acquire(blocking=False)
    assert not entered.acquire(blocking=False)
