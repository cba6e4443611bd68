"""Only the newest attempt writes metric points, and `sync` makes the points durable."""

import os

import pytest

from training.attempts.fence import Fence, SupersededError
from training.attempts.metrics import MetricsFile
from training.storage.paths import RunPaths


def test_an_attempt_that_was_given_up_adds_no_point(tmp_path):
    paths = RunPaths(tmp_path)
    old = MetricsFile(paths.metrics, 2, Fence.begin(paths, "driver"))
    old.append(1, 1, {"loss": 1.0})
    before = paths.metrics.read_bytes()
    Fence.begin(paths, "driver")
    with pytest.raises(SupersededError):
        old.append(2, 1, {"loss": 0.5})
    assert paths.metrics.read_bytes() == before


def test_sync_reaches_the_disk_and_needs_no_file(tmp_path, monkeypatch):
    paths, synced = RunPaths(tmp_path), []
    points = MetricsFile(paths.metrics, 2)
    points.sync()
    points.append(1, 1, {"loss": 1.0})
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), real(file)))
    points.sync()
    assert synced == [paths.metrics.stat().st_ino]
