"""Rows of several shards are prepared on Ray, to the same bits; a single shard starts no worker."""

from pathlib import Path
from typing import Any

import pytest
import ray.data
from small_runs import tiny_settings

from flows.prepare import prepare
from training.data.preparation import prepare as shards
from training.data.sources.digits import Digits
from training.plan import identify
from training.recipe import load
from training.records import DatasetVersion
from training.storage.paths import Home

pytestmark = pytest.mark.usefixtures("prefect_harness", "ray_session")


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of shards of each Ray Data pipeline that the test starts."""
    started: list[int] = []
    read_datasource = ray.data.read_datasource

    def noted(source: Any, override_num_blocks: int) -> Any:
        started.append(override_num_blocks)
        return read_datasource(source, override_num_blocks=override_num_blocks)

    monkeypatch.setattr(ray.data, "read_datasource", noted)
    return started


def digits(folder: Path, workers: int) -> DatasetVersion:
    home = Home(folder)
    settings = tiny_settings(scaling={"num_workers": workers})
    return prepare(identify(home, load("digits")[1], settings, Digits().fetch(home.sources)))


@pytest.mark.extended
def test_several_shards_become_the_same_parts_on_ray(
    tmp_path: Path, pipelines: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_SHARD_ROWS", 700)
    on_ray, here = digits(tmp_path / "ray", workers=2), digits(tmp_path / "here", workers=0)
    assert pipelines == [3]
    assert on_ray == here.model_copy(update={"path": on_ray.path})


@pytest.mark.extended
def test_a_single_shard_starts_no_worker(tmp_path: Path, pipelines: list[int]) -> None:
    on_ray, here = digits(tmp_path / "ray", workers=2), digits(tmp_path / "here", workers=0)
    assert pipelines == []
    assert on_ray == here.model_copy(update={"path": on_ray.path})
