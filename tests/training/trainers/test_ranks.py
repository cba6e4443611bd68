"""Communication between ranks, in real process groups."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from training.trainers.ranks import Ranks, backend_name

_LARGE = 10**9 + 8  # in float64, 3 * (x*x + x*x + x*x) != (x + x + x)**2


def _compare(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    ranks = Ranks(rank, world, torch.device("cpu"), distributed=True)
    equal = ranks.all_equal(_LARGE)
    one_ahead = ranks.all_equal(_LARGE + (rank == 1))
    (folder / f"rank-{rank}").write_text(f"{equal} {one_ahead} {backend_name(ranks)}")
    dist.destroy_process_group()


@pytest.mark.extended
def test_ranks_notice_a_difference_of_one_at_any_step_count(tmp_path: Path) -> None:
    mp.spawn(_compare, args=(3, tmp_path), nprocs=3, join=True)
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(3)] == ["True False gloo"] * 3


def test_a_single_process_agrees_with_itself() -> None:
    alone = Ranks.of_this_process(use_gpu=False)
    assert alone.all_equal(_LARGE)
    assert backend_name(alone) == "none"
