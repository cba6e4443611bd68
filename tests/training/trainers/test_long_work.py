"""Work of one rank that takes longer than the limit of a collective operation, in real process groups."""

import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from training.attempts.heartbeat import Heartbeat
from training.errors import TransientError
from training.trainers.long_work import LongWork
from training.trainers.ranks import Ranks

_LIMIT_S = 8.0  # of a collective operation; long enough for a process of a busy machine to be scheduled in


def _long_work(rank: int, folder: Path, limit_s: float) -> LongWork:
    torch.set_num_threads(1)
    (folder / f"ready-{rank}").touch()
    while not all((folder / f"ready-{other}").exists() for other in range(2)):  # joining has the same limit
        time.sleep(0.05)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=_LIMIT_S),
    )
    heartbeat = Heartbeat(folder / "run" / "beats" / f"rank-{rank}.json", 1, rank, "node")
    return LongWork(Ranks(rank, 2, torch.device("cpu"), distributed=True), heartbeat, limit_s)


def _moves_slowly(rank: int, folder: Path) -> None:
    """Rank 0 transfers bytes for longer than the limit of a collective operation and that of a silent transfer."""
    long_work = _long_work(rank, folder, _LIMIT_S)

    def transfer() -> None:
        end = time.monotonic() + 1.5 * _LIMIT_S
        while time.monotonic() < end:
            long_work.heartbeat.add_moved(1)
            time.sleep(0.1)

    long_work.on_first(transfer)
    (folder / f"rank-{rank}").write_text(str(long_work.on_all(lambda: 7)))
    dist.destroy_process_group()


@pytest.mark.slow
def test_work_that_moves_bytes_may_take_longer_than_a_collective_operation(tmp_path: Path) -> None:
    mp.spawn(_moves_slowly, args=(tmp_path,), nprocs=2, join=True)
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)] == ["7", "7"]


def _hangs(rank: int, folder: Path) -> None:
    long_work = _long_work(rank, folder, 0.5)
    try:
        long_work.on_first(threading.Event().wait)  # type: ignore[arg-type]
    except Exception as error:
        (folder / f"rank-{rank}").write_text(f"{type(error).__name__}: {error}")


@pytest.mark.slow
def test_work_that_moves_nothing_is_given_up(tmp_path: Path) -> None:
    mp.spawn(_hangs, args=(tmp_path,), nprocs=2, join=True)
    said = [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)]
    assert any("TransientError: no worker has" in text and "storage.url" in text for text in said)


def test_a_single_process_works_in_its_own_thread(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path / "run" / "beats" / "rank-0.json", 1, 0, "node")
    long_work = LongWork(Ranks.of_this_process(use_gpu=False), heartbeat, 0.0)
    assert long_work.on_all(threading.current_thread) is threading.current_thread()

    def fail() -> None:
        raise TransientError("the store is away")

    with pytest.raises(TransientError, match="the store is away"):
        long_work.on_first(fail)
