"""Datasets in an object store: uploaded once, checked when downloaded, uploaded again after damage."""

import shutil
from pathlib import Path

import pytest

from training.checkpoints.opening import prefix_of_dataset as prefix
from training.data.manifest import MANIFEST
from training.errors import TransientError
from training.ray_cluster.stored_datasets import fetch, node_cache, publish
from training.records import DatasetVersion
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


def test_a_node_keeps_two_versions(small_version: DatasetVersion, store: ObjectStore, tmp_path: Path) -> None:
    publish(small_version, store)
    folder = Path(fetch(small_version, store, tmp_path / "node").path)
    for name in ("a", "b", "c"):
        (folder.parent / name).mkdir()
    fetch(small_version, store, tmp_path / "node")
    assert len([path for path in folder.parent.iterdir() if path.is_dir()]) == 2
    assert folder.is_dir()


def test_a_cache_is_the_user_s_own(own_tmp: Path) -> None:
    assert node_cache(None).stat().st_mode & 0o777 == 0o700
    assert node_cache(str(own_tmp / "chosen" / "folder")).is_dir()
