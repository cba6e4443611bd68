"""The outcome that no fault may change."""

from typing import Any

import pytest
from crashes import outcome
from slow_runs import slow_job

from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch


@pytest.fixture(scope="session")
def calm(
    small_version: DatasetVersion, tmp_path_factory: pytest.TempPathFactory, ray_session: None
) -> tuple[Any, ...]:
    """The outcome of an undisturbed training on three workers that share a disk."""
    job = slow_job(Home(tmp_path_factory.mktemp("calm")), small_version)
    return outcome(job, launch(job))
