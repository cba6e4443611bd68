"""Fixtures for tests of batch prediction and of a deployment's services."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import registered
from registered import MODEL
from services import Services

from tasks import predict as step
from training.storage.paths import Home


@pytest.fixture(scope="session")
def served_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with a champion and a challenger, registered by :mod:`registered`."""
    home = Home(tmp_path_factory.mktemp("served"))
    registered.register(home, versions=2)
    return home


@pytest.fixture
def predict(served_home: Home) -> Callable[..., step.PredictionSummary]:
    """Return the predict step with `served_home` as its home."""

    def run(source: Path, output: Path, model: str = MODEL, **options: Any) -> step.PredictionSummary:
        return step.predict.fn(str(served_home.root), model, str(source), str(output), **options)

    return run


@pytest.fixture
def services() -> Iterator[Services]:
    folder = Path(tempfile.mkdtemp(prefix="eg-", dir="/tmp"))  # short, because Ray's Unix sockets lie in it
    running = Services(folder)
    try:
        yield running
    finally:
        running.end()
        shutil.rmtree(folder)
