"""A store that can't serve a run is refused before anything is downloaded; the error names setting, URL and remedy."""

from collections.abc import Iterator

import fsspec
import pytest
from s3_server import S3Server
from small_runs import tiny_settings

from flows.preview import preview
from flows.retrain import retrain
from tasks.checks.storage_check import check_storage, check_storage_reads
from training.errors import ResourceError, SettingError, TransientError
from training.settings.schema import Settings
from training.storage.objects.base import open_store
from training.storage.paths import Home

MISSING = "s3://evergreen-no-such-bucket/team"


@pytest.fixture
def other_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """For changes of variables that fsspec reads when it creates a file system, of which it keeps one."""
    fsspec.filesystem("s3").clear_instance_cache()
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    yield monkeypatch
    fsspec.filesystem("s3").clear_instance_cache()


def at(url: str) -> Settings:
    return tiny_settings(storage={"url": url})


def test_a_store_that_serves_passes_and_keeps_nothing(s3_server: S3Server) -> None:
    url = s3_server.new_bucket()
    check_storage(at(url))
    check_storage_reads(at(url))
    assert open_store(url).keys("probes") == []
    check_storage(tiny_settings())


@pytest.mark.usefixtures("prefect_harness", "s3_server")
def test_a_missing_bucket_is_refused_before_the_download(home: Home) -> None:
    refusal = rf"storage\.url: {MISSING}: there is no such bucket\. Create it, or correct the URL"
    with pytest.raises(SettingError, match=refusal):
        preview("digits", {"storage": {"url": MISSING}}, home)
    source = home.sources / "digits"
    before = sorted(source.rglob("*"))
    with pytest.raises(SettingError, match=refusal):
        retrain("digits", {"storage": {"url": MISSING}, "scaling": {"num_workers": 0}})
    assert sorted(source.rglob("*")) == before
    assert not home.runs("digits").exists()


@pytest.mark.parametrize("check", [check_storage, check_storage_reads])
def test_missing_credentials_are_named(
    s3_server: S3Server, other_environment: pytest.MonkeyPatch, check: object
) -> None:
    url = s3_server.new_bucket()
    fsspec.filesystem("s3").clear_instance_cache()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        other_environment.delenv(name)
    assert callable(check)
    with pytest.raises(SettingError, match=rf"storage\.url: {url} refuses to .*Set credentials"):
        check(at(url))


def test_a_name_that_no_bucket_has_is_a_wrong_setting() -> None:
    with pytest.raises(SettingError, match=r"s3://not!a!bucket is no URL of a bucket .*Correct the URL"):
        check_storage(at("s3://not!a!bucket"))


def test_a_server_that_is_away_ends_a_run_and_warns_in_a_plan(
    s3_server: S3Server, other_environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other_environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    away = r"s3://evergreen does not answer the request to create an object"
    with pytest.raises(TransientError, match=away):
        check_storage(at("s3://evergreen"))
    check_storage_reads(at("s3://evergreen"))
    assert "does not answer the request to list objects" in caplog.text


def test_a_server_that_ignores_conditions_is_refused(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3_server.new_bucket()
    files = fsspec.filesystem("s3")
    pipe = files.pipe_file
    # As a server that ignores If-None-Match:
    monkeypatch.setattr(files, "pipe_file", lambda path, data, **_mode: pipe(path, data))
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url, **_: (files, url.removeprefix("s3://")))
    with pytest.raises(
        ResourceError, match=rf"storage\.url: {url} overwrites .*If-None-Match.*another store"
    ):
        check_storage(at(url))
    assert open_store(url).keys("probes") == []
