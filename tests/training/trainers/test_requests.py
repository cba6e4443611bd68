"""Requests to save and to stop: each save is requested once, and none is lost."""

from pathlib import Path

import pytest

from training.attempts.fence import Fence, SupersededError
from training.storage.paths import RunPaths
from training.trainers.requests import SAVE, STOP, Requests


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def requests(paths: RunPaths, busy: list[bool], every_s: float = 1e9, **options: bool) -> Requests:
    fence = Fence.enter(paths, Fence.begin(paths).number)
    return Requests(paths, every_s, options.pop("is_first", True), fence, lambda: busy[0], **options)


def read(reader: Requests) -> int:
    reader.looked_at = -1e9  # looks every 0.2 s otherwise
    return reader.read()


def test_a_request_to_save_is_met_once(paths: RunPaths) -> None:
    reader = requests(paths, [False])
    assert read(reader) == 0
    paths.save.touch()
    assert [read(reader), read(reader)] == [SAVE, 0]
    assert not paths.save.exists()


def test_a_request_to_save_waits_for_the_checkpoint_that_is_being_written(paths: RunPaths) -> None:
    busy = [True]
    reader = requests(paths, busy)
    paths.save.touch()
    assert read(reader) == 0
    busy[0] = False
    assert read(reader) == SAVE


def test_a_save_is_due_after_some_time(paths: RunPaths) -> None:
    reader = requests(paths, [False], every_s=0.0)
    assert read(reader) == SAVE
    reader.every_s = 1e9
    reader.saved()
    assert read(reader) == 0


def test_to_stop_comes_first_and_other_workers_get_no_request(paths: RunPaths) -> None:
    first, other = requests(paths, [False]), requests(paths, [False], is_first=False)
    paths.save.touch()
    paths.stop.touch()
    assert [read(first), read(other)] == [STOP, 0]


def test_a_feed_that_can_t_be_entered_at_any_step_saves_at_the_end_of_an_epoch(paths: RunPaths) -> None:
    assert read(requests(paths, [False], every_s=0.0, can_save=False)) == 0


def test_a_superseded_attempt_gets_no_request(paths: RunPaths) -> None:
    reader = requests(paths, [False], every_s=0.0)
    Fence.begin(paths)
    with pytest.raises(SupersededError):
        read(reader)
