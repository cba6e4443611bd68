"""Object stores: each keeps the contract; URLs and failures are explained."""

import errno
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from s3_server import S3Server
from store_contract import StoreContract

from training.errors import ResourceError, SettingError, TransientError
from training.storage.objects.base import check_store, check_url, open_store
from training.storage.objects.remote import RemoteStore


class TestLocal(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/a%20shared/folder"


class TestS3(StoreContract):
    @pytest.fixture
    def url(self, s3_server: S3Server) -> str:
        return f"{s3_server.new_bucket()}/team/evergreen"


def test_an_object_that_is_deleted_during_a_listing_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"file://{tmp_path}")
    for key in ("log/1", "log/2"):
        store.put_new(key, b"one")
    monkeypatch.setattr(store, "keys", lambda _prefix: ["log/1", "log/2"])
    store.delete(["log/1"])
    assert [entry.key for entry in store.listing("log")] == ["log/2"]


@pytest.mark.parametrize(
    "url",
    [
        "bucket/folder",
        "ftp://host/folder",
        "memory://folder",
        "s3://",
        "s3://user:secret@bucket/folder",
        "s3://bucket/folder?x=1",
        "file://host/folder",
        "file:///",
        "file://",
    ],
)
def test_a_url_of_no_store_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|file:///"):
        check_url(url)


def test_a_url_has_no_slash_at_its_end() -> None:
    assert check_url("s3://bucket/folder/") == "s3://bucket/folder"


def test_a_store_that_ignores_the_condition_is_refused(s3_server: S3Server) -> None:
    store = open_store(s3_server.new_bucket())
    assert isinstance(store, RemoteStore)
    pipe = store._files.pipe_file
    store._files.pipe_file = lambda path, data, **_mode: pipe(path, data)  # a server without If-None-Match
    try:
        with pytest.raises(ResourceError, match="If-None-Match"):
            check_store(store)
    finally:
        store._files.pipe_file = pipe
    assert store.keys("probes") == []


def test_a_server_that_does_not_name_the_condition_is_understood(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every server answers with the element `Condition`, as AWS does: status 412 says enough."""
    from moto.s3.exceptions import PreconditionFailed, S3ClientError

    monkeypatch.setattr(
        PreconditionFailed, "__init__", lambda self, _: S3ClientError.__init__(self, "precondition failed")
    )
    store = open_store(s3_server.new_bucket())
    assert store.put_new("key", b"1")
    assert not store.put_new("key", b"2")
    check_store(store)


def test_a_store_whose_first_reply_was_lost_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library repeats the request, and the server answers that the object exists."""
    store = open_store(f"file://{tmp_path}")
    put_new = store.put_new

    def lost_at_first(key: str, data: bytes) -> bool:
        return put_new(key, data) and data != b"1"

    monkeypatch.setattr(store, "put_new", lost_at_first)
    check_store(store)
    assert store.keys("probes") == []
    monkeypatch.setattr(store, "put_new", lambda _key, _data: False)
    with pytest.raises(ResourceError, match="does not create a new object"):
        check_store(store)


def test_an_upload_whose_end_was_sent_twice_is_tried_again(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has completed the upload, its reply was lost, and the second request names an unknown upload."""
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error

    store = open_store(s3_server.new_bucket())
    assert isinstance(store, RemoteStore)

    def refused(*_given: object, **_options: object) -> None:
        answer = {"Error": {"Code": "NoSuchUpload", "Message": "the upload does not exist"}}
        raise translate_boto_error(ClientError(answer, "CompleteMultipartUpload"))  # type: ignore[arg-type]

    monkeypatch.setattr(store._files, "put_file", refused)
    (tmp_path / "file").touch()
    with pytest.raises(TransientError, match="does not know an upload that was begun"):
        store.put_file("key", tmp_path / "file")


def test_a_file_that_is_gone_is_no_missing_bucket(s3_server: S3Server, tmp_path: Path) -> None:
    store = open_store(s3_server.new_bucket())
    with pytest.raises(FileNotFoundError, match="gone"):
        store.put_file("key", tmp_path / "gone")


def test_a_missing_package_is_named() -> None:
    with pytest.raises(SettingError, match=r"storage\.url: gs://bucket needs a Python package.*gcsfs"):
        open_store("gs://bucket")


def test_a_missing_bucket_is_explained(s3_server: S3Server, tmp_path: Path) -> None:
    store = open_store("s3://evergreen-no-such-bucket")
    with pytest.raises(SettingError, match=r"evergreen-no-such-bucket: there is no such bucket\. Create it"):
        store.put_new("key", b"")


def test_a_server_that_is_away_is_a_transient_failure(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fsspec.filesystem("s3").clear_instance_cache()
    try:
        with pytest.raises(TransientError, match="does not answer"):
            open_store("s3://evergreen").get("key")
    finally:
        fsspec.filesystem("s3").clear_instance_cache()


def test_a_path_that_is_no_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TransientError, match=r"storage\.url: .*File exists"):
        open_store(f"file://{tmp_path}/file").put_new("key", b"")


_WRITE = """
import resource, sys
from pathlib import Path
from training.errors import ResourceError
from training.storage.objects.base import open_store

folder, source, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
store = open_store(f"file://{folder}")
store.put_new("old", b"old")
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
for write in (
    lambda: store.put_file("a/file", source),
    lambda: store.put_file("old", source),
    lambda: store.put_new("a/new", source.read_bytes()),
    lambda: open_store(f"file://{source.parent}").get_file(source.name, folder / "old"),
):
    try:
        write()
    except ResourceError as error:
        print(error)
    assert [file.name for file in folder.rglob("*") if file.is_file()] == ["old"], list(folder.rglob("*"))
    assert store.get("old") == b"old"
"""


def write_much(folder: Path, source: Path, *start: str, limit: int = 0) -> list[str]:
    """Write the file `source` to a store in `folder` in each way, in a process of its own; returns the messages."""
    source.write_bytes(bytes(1 << 20))
    command = [*start, sys.executable, "-c", _WRITE, str(folder), str(source), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check_named(messages: list[str], folder: Path, reason: str) -> None:
    assert len(messages) == 4
    for message, name in zip(messages, ("a/file", "old", "a/new", "old"), strict=True):
        assert message.startswith(f"storage.url: {folder / name} can't be written: {reason} (")
        assert "MB are free at" in message
        assert message.endswith(
            "Free some space or raise the limit there, and run the same command: it resumes."
        )


def test_a_limit_of_file_sizes_leaves_no_part_of_an_object(tmp_path: Path) -> None:
    messages = write_much(tmp_path / "store", tmp_path / "source", limit=1000)
    check_named(messages, tmp_path / "store", "the file would exceed the size limit")


def test_a_full_disk_is_named_and_leaves_no_part_of_an_object(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=256k none {disk} && exec "$@"'
    start = ("unshare", "--mount", "sh", "-c", mount, "sh")
    if subprocess.run([*start, "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this user may not mount a small disk")
    messages = write_much(disk / "store", tmp_path / "source", *start)
    check_named(messages, disk / "store", "the disk is full")


def test_no_empty_folder_is_left_but_those_that_runs_share(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    keys = ["runs/digits/first/files/1.1-a/step/state", "runs/digits/first/files/1.1-b/step/state"]
    for key in (*keys, "runs/digits/second/log/1"):
        store.put_new(key, b"")
    store.delete(keys[:1])
    assert store.keys("") == [keys[1], "runs/digits/second/log/1"]
    assert not (tmp_path / "store/runs/digits/first/files/1.1-a").exists()
    store.delete([*keys, "runs/digits/second/log/1"])
    assert [folder.name for folder in (tmp_path / "store/runs").rglob("*")] == ["digits"]


def test_a_listing_goes_on_while_folders_are_removed(tmp_path: Path) -> None:
    """Scenario: `evergreen gc` of one home lists a store in which another home deletes old checkpoints."""
    store, over = open_store(f"file://{tmp_path}/store"), threading.Event()
    store.put_new("runs/digits/kept/log/1", b"")

    def make_and_delete() -> int:
        rounds = 0
        while not over.is_set():
            keys = [f"runs/digits/kept/files/1.1-{number}/step/state" for number in range(20)]
            for key in keys:
                store.put_new(key, b"")
            store.delete(keys)
            rounds += 1
        return rounds

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(make_and_delete)
        try:
            for _ in range(300):
                assert "runs/digits/kept/log/1" in store.keys("runs")
        finally:
            over.set()
        assert other.result() > 0


def test_an_upload_to_s3_counts_its_bytes_on_the_way(s3_server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(bytes(40 << 20))
    moved: list[int] = []
    store = open_store(s3_server.new_bucket())
    store.put_file("runs/r/state", tmp_path / "state", moved.append)
    assert [count for count in moved if count] == [8 << 20] * 5
    assert store.get("runs/r/state") == bytes(40 << 20)


@pytest.mark.parametrize("size", [0, 5, 8 << 30, 100 << 30, 4 << 40])
def test_an_upload_to_s3_has_no_more_parts_than_s3_takes(size: int, tmp_path: Path) -> None:
    with (tmp_path / "state").open("wb") as file:
        file.truncate(size)  # sparse: takes no space
    files = Mock(protocol=("s3", "s3a"))
    RemoteStore("s3://bucket", files, "bucket").put_file("state", tmp_path / "state")
    part = files.put_file.call_args.kwargs["chunksize"]
    assert part >= 5 << 20
    assert size <= part * 10_000


def test_a_folder_that_can_not_be_listed_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"file://{tmp_path}")
    store.put_new("runs/key", b"")
    scandir = os.scandir

    def failing(path: Any) -> Any:
        if Path(path) == tmp_path / "runs":
            raise OSError(errno.EIO, "Input/output error")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(TransientError, match="Input/output error"):
        store.keys("runs")
    assert store.keys("nothing") == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_links(*_: Any) -> None:
        raise OSError(number, "not possible")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(ResourceError, match="has no hard links"):
        open_store(f"file://{tmp_path}").put_new("key", b"")
