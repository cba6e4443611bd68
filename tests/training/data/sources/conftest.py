"""Fixtures for tests of sources: real data if available, a local HTTP server, and reading a split back."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from web_site import Site, serving

from training.data.sources.locate import reader
from training.records import SourceFiles


@pytest.fixture
def site() -> Iterator[Site]:
    """A web server on this machine."""
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def real_data() -> Path:
    folder = os.environ.get("EVERGREEN_TEST_DATA")
    if not folder:
        pytest.skip("EVERGREEN_TEST_DATA names no folder with FashionMNIST/raw and cifar10-jpeg.tar.xz")
    return Path(folder)


def read_rows(files: SourceFiles, split: str, rows: list[int] | None = None) -> list[dict[str, Any]]:
    """Read rows as another process would, with no information besides `files`."""
    again = SourceFiles.model_validate_json(files.model_dump_json())
    source = reader(again)
    wanted = list(range(source.count(again, split))) if rows is None else rows
    return [row for batch in source.read(again, split, wanted) for row in batch.to_pylist()]


def pixels(row: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(row["image"], np.uint8).reshape(row["height"], row["width"], row["channels"])


@pytest.fixture
def rows_of() -> Callable[..., list[dict[str, Any]]]:
    return read_rows


@pytest.fixture
def pixels_of() -> Callable[[dict[str, Any]], np.ndarray[Any, np.dtype[np.uint8]]]:
    return pixels


@pytest.fixture
def inner_folder(tmp_path: Path) -> Path:
    """A folder inside the test's temporary folder, so that a test sees files that escape it."""
    inner = tmp_path / "inner"
    inner.mkdir()
    return inner
