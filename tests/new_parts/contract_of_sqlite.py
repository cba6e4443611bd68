"""The contract of an object store, for `sqlite.py`. A test file of the product."""

from pathlib import Path

import pytest
from slow_runs import slow_job
from store_contract import StoreContract

from training.attempts.history import read_attempts
from training.records import DatasetVersion
from training.storage.objects.base import open_store
from training.storage.paths import Home
from training.supervision.launch import launch


class TestSqlite(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setenv("SQLITE_OBJECTS", str(tmp_path))
        return "sqlite://objects/folder"

    def test_another_home_finds_the_finished_training(
        self, url: str, small_version: DatasetVersion, tmp_path: Path
    ) -> None:
        first, second = (
            slow_job(
                Home(tmp_path / name),
                small_version,
                workers=0,
                training={"epochs": 1},
                storage={"url": url},
                scaling={"use_gpu": "no"},
            )
            for name in ("first", "second")
        )
        trained = launch(first)
        assert trained.attempts == 1
        assert [key for key in open_store(url).keys("runs") if "/log/" in key]
        reused_model = launch(second)
        assert reused_model.weights_digest == trained.weights_digest
        assert read_attempts(second.paths) == read_attempts(first.paths)
