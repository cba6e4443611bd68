"""Object stores: each keeps the contract; URLs and failures are explained."""

from pathlib import Path

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
