"""The driver's copy of a worker's files follows the worker; the driver's requests and fence reach the worker."""

from pathlib import Path

import pytest

from training.attempts.fence import Fence, SupersededError
from training.attempts.heartbeat import Heartbeat, furthest_step, read_beats
from training.attempts.metrics import MetricsFile
from training.attempts.mirror import DriverSide, Outbox
from training.storage.paths import RunPaths

RUN = "0123456789abcdef"


@pytest.fixture
def driver(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "driver" / RUN)
    paths.root.mkdir(parents=True)
    return paths


@pytest.fixture
def worker(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "worker" / RUN)
    paths.root.mkdir(parents=True)
    return paths


def begin(driver: RunPaths, worker: RunPaths, fence: Fence, rank: int = 0) -> Outbox:
    files, known = DriverSide(str(driver.root)).begin(rank, fence.number, fence.driver)
    for name, content in files.items():
        (worker.root / name).parent.mkdir(parents=True, exist_ok=True)
        (worker.root / name).write_bytes(content)
    return Outbox(worker.root, rank, known)


def exchange(driver: RunPaths, outbox: Outbox) -> None:
    changes = outbox.changes()
    outbox.apply_reply(DriverSide(str(driver.root)).exchange(outbox.rank, changes, outbox.fence))


def test_points_that_are_appended_and_rewound_arrive_in_order(driver: RunPaths, worker: RunPaths) -> None:
    outbox = begin(driver, worker, Fence.begin(driver, "here"))
    metrics, arrived = MetricsFile(worker.metrics), MetricsFile(driver.metrics)
    for step in (1, 2, 3):
        metrics.append(step, 1, {"loss": float(step)})
        exchange(driver, outbox)
        assert arrived.read() == metrics.read()
    metrics.rewind(1)
    metrics.append(2, 1, {"loss": 0.5})
    exchange(driver, outbox)
    assert driver.metrics.read_bytes() == worker.metrics.read_bytes()
    exchange(driver, outbox)
    assert driver.metrics.read_bytes() == worker.metrics.read_bytes()


def test_what_the_driver_gave_is_not_sent_back(driver: RunPaths, worker: RunPaths) -> None:
    MetricsFile(driver.metrics).append(1, 1, {"loss": 1.0})
    outbox = begin(driver, worker, Fence.begin(driver, "here"))
    assert outbox.changes() == []
    MetricsFile(worker.metrics).append(2, 1, {"loss": 2.0})
    (change,) = outbox.changes()
    assert (change.name, change.appended) == ("metrics.jsonl", True)


def test_heartbeats_arrive(driver: RunPaths, worker: RunPaths) -> None:
    outbox = begin(driver, worker, Fence.begin(driver, "here"), rank=1)
    for step in (0, 7):
        Heartbeat(worker.beats / "rank-1.json", 1, 1, "node").beat(step)
        exchange(driver, outbox)
        assert furthest_step(driver) == step


def test_requests_reach_the_worker_and_a_save_is_requested_once(driver: RunPaths, worker: RunPaths) -> None:
    outbox = begin(driver, worker, Fence.begin(driver, "here"))
    driver.save.touch()
    driver.stop.touch()
    exchange(driver, outbox)
    assert worker.save.exists()
    assert worker.stop.exists()
    worker.save.unlink()
    driver.stop.unlink()
    exchange(driver, outbox)
    assert not worker.save.exists()
    assert not worker.stop.exists()


def test_a_newer_attempt_and_a_newer_group_close_the_fence_of_the_worker(
    driver: RunPaths, worker: RunPaths, tmp_path: Path
) -> None:
    begun = Fence.begin(driver, "here")
    outbox = begin(driver, worker, begun)
    exchange(driver, outbox)  # before the worker enters: the fence in its folder stays as it is
    fence = Fence.enter(worker, begun.number, "here")
    exchange(driver, outbox)
    fence.check()
    replaced = RunPaths(tmp_path / "replacement" / RUN)
    replaced.root.mkdir(parents=True)
    newer = begin(driver, replaced, begun)
    entered = Fence.enter(replaced, begun.number, "here")
    exchange(driver, outbox)
    exchange(driver, newer)
    entered.check()
    with pytest.raises(SupersededError):
        fence.check()
    Fence.begin(driver, "here")
    exchange(driver, newer)
    with pytest.raises(SupersededError):
        entered.check()
    with pytest.raises(SupersededError):
        begin(driver, worker, begun)


def test_the_recipe_s_copy_reaches_the_worker(driver: RunPaths, worker: RunPaths) -> None:
    (driver.recipe / "helpers").mkdir(parents=True)
    (driver.recipe / "recipe.py").write_text("import helpers")
    (driver.recipe / "helpers" / "__init__.py").write_text("")
    begin(driver, worker, Fence.begin(driver, "here"), rank=2)
    assert (worker.recipe / "helpers" / "__init__.py").is_file()
    assert (worker.recipe / "recipe.py").read_text() == "import helpers"


def test_a_superseded_worker_changes_nothing(driver: RunPaths, worker: RunPaths) -> None:
    outbox = begin(driver, worker, Fence.begin(driver, "here"))
    MetricsFile(driver.metrics).append(1, 1, {"loss": 1.0})
    Fence.begin(driver, "here")
    driver.save.touch()  # a request to the workers of the newer attempt
    for step in (1, 2):  # also when it sends again
        MetricsFile(worker.metrics).append(step, 1, {"loss": 2.0})
        exchange(driver, outbox)
    assert [point.values for point in MetricsFile(driver.metrics).read()] == [{"loss": 1.0}]
    assert (driver.save.exists(), worker.save.exists()) == (True, False)
    with pytest.raises(SupersededError):
        Fence.enter(worker, 1, "here")


def test_a_replaced_file_is_recognised_when_its_inode_is_used_again(
    driver: RunPaths, worker: RunPaths
) -> None:
    """A file system gives the inode of a removed file to a new file, so an inode says nothing about the content."""
    outbox = begin(driver, worker, Fence.begin(driver, "here"))
    worker.metrics.write_bytes(b"first line\nsecond line\n")
    exchange(driver, outbox)
    with worker.metrics.open("r+b") as same_inode:
        same_inode.write(b"FIRST LINE\nother line!\nthird line\n")
    (change,) = outbox.changes()
    assert (change.appended, change.content) == (False, worker.metrics.read_bytes())
    with worker.metrics.open("r+b") as same_inode:
        same_inode.write(b"again")  # the same length
    assert [change.name for change in outbox.changes()] == ["metrics.jsonl"]
    assert outbox.changes() == []


def test_long_files_are_not_sent_again(driver: RunPaths, worker: RunPaths) -> None:
    outbox = begin(driver, worker, Fence.begin(driver, "here"))
    metrics = MetricsFile(worker.metrics)
    for step in range(1, 200):
        metrics.append(step, 1, {"loss": float(step)})
    exchange(driver, outbox)
    size = worker.metrics.stat().st_size
    assert size > 10_000
    metrics.append(200, 1, {"loss": 1.0})
    (change,) = outbox.changes()
    assert (change.appended, len(change.content)) == (True, worker.metrics.stat().st_size - size)


def test_heartbeats_that_the_driver_gave_are_not_sent_back_in_place_of_newer_ones(
    driver: RunPaths, worker: RunPaths
) -> None:
    """A worker restores the heartbeats of older attempts after its dataset has arrived: it reads how far these came."""
    Heartbeat(driver.beats / "rank-0.json", 1, 0, "old node").beat(40)
    old = (driver.beats / "rank-0.json").read_bytes()
    outbox = begin(driver, worker, Fence.begin(driver, "here", 2))
    Heartbeat(worker.beats / "rank-0.json", 2, 0, "node").beat(0)  # while the dataset arrives
    exchange(driver, outbox)
    (worker.beats / "rank-0.json").write_bytes(old)
    exchange(driver, outbox)
    assert [(beat.attempt, beat.step) for beat in read_beats(driver)] == [(2, 0)]
    assert furthest_step(worker) == 40
    Heartbeat(worker.beats / "rank-0.json", 2, 0, "node").beat(1)
    exchange(driver, outbox)
    assert [(beat.attempt, beat.step) for beat in read_beats(driver)] == [(2, 1)]
