"""Datasets in an object store: uploaded once, checked when downloaded, uploaded again after damage."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from training.checkpoints.opening import prefix_of_dataset as prefix
from training.data.manifest import MANIFEST, check_parts, read_manifest, write_manifest
from training.errors import TransientError
from training.ray_cluster import stored_datasets
from training.ray_cluster.node_caches import node_cache, remove_unused, unused
from training.ray_cluster.stored_datasets import damage, fetch, folder_in, publish, stored_version
from training.records import DatasetVersion, PartFile, Split
from training.storage.files import digest_file, digest_json
from training.storage.objects.base import ObjectStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}/store")


def test_a_node_gets_the_same_dataset(
    small_version: DatasetVersion, store: ObjectStore, tmp_path: Path
) -> None:
    publish(small_version, store)
    there = fetch(small_version, store, tmp_path / "node")
    assert there.path != small_version.path
    assert there == small_version.model_copy(update={"path": there.path})
    shutil.rmtree(tmp_path / "store")
    assert fetch(small_version, store, tmp_path / "node") == there  # not downloaded again


def test_reading_files_for_their_digests_is_progress(
    small_version: DatasetVersion, store: ObjectStore, tmp_path: Path
) -> None:
    publish(small_version, store)
    size = sum(part.bytes for parts in small_version.parts.values() for part in parts)
    moved: list[int] = []
    fetch(small_version, store, tmp_path / "node", moved.append)
    manifest = (folder_in(tmp_path / "node", small_version) / MANIFEST).stat().st_size
    assert sum(moved) == manifest + 2 * size, "transferred, and read for the digests"
    moved.clear()
    fetch(small_version, store, tmp_path / "node", moved.append)
    assert sum(moved) == size


def test_only_bytes_that_another_process_downloads_meanwhile_are_progress(
    small_version: DatasetVersion, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_datasets, "_LOOK_S", 0.01)
    publish(small_version, store)
    folder, moved = folder_in(tmp_path / "node", small_version), list[int]()
    aside = folder.with_name(f".{folder.name}.0.tmp")
    aside.mkdir(parents=True)

    def wait_for(looks: int) -> None:
        seen = len(moved)
        while len(moved) < seen + looks:
            assert not there.done()
            time.sleep(0.01)

    with ThreadPoolExecutor(1) as pool:
        with FileLock(folder.with_suffix(".lock")):
            there = pool.submit(fetch, small_version, store, tmp_path / "node", moved.append)
            wait_for(looks=3)
            assert sum(moved) == 0
            (aside / "part").write_bytes(b"12345")
            wait_for(looks=3)
            assert sum(moved) == 5
            assert not folder.exists()
        assert there.result().path == str(folder)


def test_a_damaged_upload_is_uploaded_again(
    small_version: DatasetVersion, store: ObjectStore, tmp_path: Path
) -> None:
    publish(small_version, store)
    part = small_version.parts["train"][0].path
    (tmp_path / "bad").write_bytes(store.get(f"{prefix(small_version)}/{part}")[:-1])
    store.put_file(f"{prefix(small_version)}/{part}", tmp_path / "bad")
    with pytest.raises(TransientError, match=r"damaged \(part-.*\)\. Run the same command again"):
        fetch(small_version, store, tmp_path / "node")
    assert f"{prefix(small_version)}/{MANIFEST}" not in store.keys(prefix(small_version))
    publish(small_version, store)
    assert fetch(small_version, store, tmp_path / "node").fingerprint == small_version.fingerprint


def of_another_home(version: DatasetVersion, folder: Path) -> DatasetVersion:
    """The same rows in files with other bytes: Parquet has no one encoding of a table."""
    parts: dict[Split, tuple[PartFile, ...]] = {}
    for split, some in version.parts.items():
        (folder / split).mkdir(parents=True)
        made = []
        for number, part in enumerate(some):
            file = folder / (part.path if number else f"{split}/part-other.parquet")
            pq.write_table(pq.read_table(Path(version.path) / part.path), file, compression="gzip")
            update = {
                "path": str(file.relative_to(folder)),
                "bytes": file.stat().st_size,
                "sha256": digest_file(file),
            }
            made.append(part.model_copy(update=update))
        parts[split] = tuple(made)
    other = version.model_copy(update={"path": str(folder), "parts": parts})
    write_manifest(other, folder)
    return read_manifest(folder, version.fingerprint)


def test_a_home_uses_the_files_that_another_home_uploaded(
    small_version: DatasetVersion, store: ObjectStore, tmp_path: Path
) -> None:
    """A complete dataset is not overwritten, or workers of the other home would find other bytes than they expect."""
    ours = of_another_home(small_version, tmp_path / "ours")
    publish(small_version, store)
    before = {entry.key: store.get(entry.key) for entry in store.listing(prefix(ours))}
    there = publish(ours, store)
    assert {entry.key: store.get(entry.key) for entry in store.listing(prefix(ours))} == before
    assert there.parts == small_version.parts != ours.parts
    here = fetch(ours, store, tmp_path / "node")
    assert here.parts == small_version.parts
    check_parts(here)
    assert fetch(small_version, store, tmp_path / "node") == here
    assert damage(stored_version(ours, store), store) == []


@pytest.mark.parametrize("lost", ["manifest", "part"])
def test_an_upload_that_did_not_finish_is_replaced(
    small_version: DatasetVersion, store: ObjectStore, tmp_path: Path, lost: str
) -> None:
    ours = of_another_home(small_version, tmp_path / "ours")
    publish(small_version, store)
    store.delete(
        [f"{prefix(ours)}/{MANIFEST if lost == 'manifest' else small_version.parts['test'][0].path}"]
    )
    assert publish(ours, store).parts == ours.parts
    assert fetch(small_version, store, tmp_path / "node").parts == ours.parts


@pytest.mark.parametrize("wrong", ["truncated", "outside"])
def test_a_manifest_that_evergreen_did_not_write_is_replaced(
    small_version: DatasetVersion, store: ObjectStore, tmp_path: Path, wrong: str
) -> None:
    """Whoever can write to the store must not choose where a worker writes files."""
    publish(small_version, store)
    key = f"{prefix(small_version)}/{MANIFEST}"
    content = json.loads(store.get(key))
    content.pop("sha256_of_the_rest")
    content["parts"]["test"][0]["path"] = "../../outside.parquet"
    text = json.dumps(content | {"sha256_of_the_rest": digest_json(content)})
    (tmp_path / "bad").write_text(text[:-9] if wrong == "truncated" else text)
    store.put_file(f"{prefix(small_version)}/../../outside.parquet", tmp_path / "bad")
    store.put_file(key, tmp_path / "bad")
    with pytest.raises(TransientError, match=r"damaged \(manifest.json\)\. Run the same command again"):
        fetch(small_version, store, tmp_path / "node")
    store.put_file(key, tmp_path / "bad")
    assert publish(small_version, store) == small_version
    assert fetch(small_version, store, tmp_path / "node").parts == small_version.parts
    assert not list((tmp_path / "node").rglob("outside.parquet"))


def test_a_node_keeps_two_versions(small_version: DatasetVersion, store: ObjectStore, tmp_path: Path) -> None:
    publish(small_version, store)
    folder = Path(fetch(small_version, store, tmp_path / "node").path)
    for name in (letter * 16 for letter in "abc"):
        (folder.parent / name).mkdir()
        os.utime(folder.parent / name, (time.time() - 10,) * 2)  # times of one moment would be equal
    (folder.parent / "photos of a user").mkdir()
    os.utime(folder.parent / "photos of a user", (0, 0))
    fetch(small_version, store, tmp_path / "node")
    assert len([path for path in folder.parent.iterdir() if path.is_dir()]) == 3
    assert folder.is_dir()
    assert (folder.parent / "photos of a user").is_dir()


_HOLDS = """
import sys
from pathlib import Path
from training.ray_cluster.node_caches import in_use
with in_use(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_worker_reads(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", _HOLDS, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "held\n"
        yield program
        program.kill()


def test_a_version_that_a_worker_reads_stays_on_the_node(
    small_version: DatasetVersion, store: ObjectStore, tmp_path: Path
) -> None:
    cache = tmp_path / "node"
    folder = folder_in(cache, small_version)
    read = folder.with_name("0123456789abcdef")
    read.mkdir(parents=True)
    os.utime(read, (0, 0))
    publish(small_version, store)
    with another_worker_reads(read):
        for name in ("a" * 16, "b" * 16):
            (folder.parent / name).mkdir()
        fetch(small_version, store, cache)
        assert read.is_dir()
        assert list(unused(str(cache))) == []
        remove_unused(read)
        assert read.is_dir()
    assert [entry.path for entry in unused(str(cache))] == [read]  # its reader was killed
    fetch(small_version, store, cache)
    assert not read.exists()
    assert folder.is_dir()


def test_what_nobody_uses_on_a_node_is_found_without_a_change(tmp_path: Path) -> None:
    """A version of a week ago, and a download whose process is gone; not a download that is going on."""
    recipe = tmp_path / "node" / "datasets" / "small"
    names = ("01" * 8, "0a" * 8, ".dead.0a.tmp", ".going.0b.tmp", "photos of a user")
    old, new, dead, going, photos = (recipe / name for name in names)
    for folder in (old, new, dead, going, photos):
        folder.mkdir(parents=True)
    for folder in (old, photos):
        os.utime(folder, (0, 0))
    (recipe / "dead.lock").touch()
    with FileLock(recipe / "going.lock"):
        before = {path: path.stat().st_mtime_ns for path in recipe.rglob("*")}
        assert {entry.path for entry in unused(str(tmp_path / "node"))} == {old, dead}
        assert {path: path.stat().st_mtime_ns for path in recipe.rglob("*")} == before
        for entry in list(unused(str(tmp_path / "node"))):
            remove_unused(entry.path)
        remove_unused(going)
    assert {path for path in recipe.iterdir() if path.is_dir()} == {new, going, photos}
    assert list(unused(str(tmp_path / "none"))) == []


def test_a_cache_is_the_user_s_own(own_tmp: Path) -> None:
    assert node_cache(None).stat().st_mode & 0o777 == 0o700
    assert node_cache(str(own_tmp / "chosen" / "folder")).is_dir()


def test_a_manifest_that_another_home_wrote_meanwhile_stays(
    small_version: DatasetVersion, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(small_version, store)
    key = next(name for name in store.keys("datasets") if name.endswith(MANIFEST))
    (tmp_path / "newer").write_bytes(store.get(key) + b" ")
    part = next(name for name in store.keys("datasets") if name.endswith(".parquet"))
    read = store.get_file

    def with_a_rival(wanted: str, target: Path, *more: Callable[[int], None]) -> None:
        read(wanted, target, *more)
        if wanted == part:
            target.write_bytes(b"of another home")
            store.put_file(key, tmp_path / "newer")

    monkeypatch.setattr(store, "get_file", with_a_rival)
    with pytest.raises(TransientError, match="damaged"):
        fetch(small_version, store, tmp_path / "node")
    assert store.get(key).endswith(b" ")
