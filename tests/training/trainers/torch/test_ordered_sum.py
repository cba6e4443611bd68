"""The sum over all workers' shards, in real torch process groups: equal bits for any number of workers."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from training.trainers.network.feeds import shards_of
from training.trainers.ranks import Ranks
from training.trainers.torch.ordered_sum import OrderedSum

SHARDS, SIZE, STEPS = 4, 1001, 3


def vector(step: int, shard: int) -> torch.Tensor:
    """A vector long enough that the order of a sum changes the last bits of some elements."""
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * step + shard))


def expected(step: int) -> torch.Tensor:
    total = torch.zeros(SIZE)
    for shard in range(SHARDS):
        total += vector(step, shard)
    return total


def work(rank: int, world: int, folder: str) -> None:
    """One rank: several steps, because a step's memory is used again by the next step."""
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    added = OrderedSum(Ranks(rank, world, torch.device("cpu"), distributed=world > 1), SHARDS, SIZE)
    totals = []
    for step in range(STEPS):
        for number, shard in enumerate(range(SHARDS)[shards_of(SHARDS, rank, world)]):
            added.vector(number).copy_(vector(step, shard))
            added.send(number)
        totals.append(added.total().clone())
    torch.save(torch.stack(totals), f"{folder}/rank-{rank}.pt")
    if world > 1:
        dist.destroy_process_group()


@pytest.mark.extended
@pytest.mark.parametrize("world", [1, 2, 3, 4])  # of three ranks, one has fewer shards, and slices are uneven
def test_the_order_is_that_of_the_shards_on_every_rank(world: int, tmp_path: Path) -> None:
    if world == 1:
        work(0, 1, str(tmp_path))
    else:
        mp.spawn(work, args=(world, str(tmp_path)), nprocs=world)
    wanted = torch.stack([expected(step) for step in range(STEPS)])
    for rank in range(world):
        assert torch.equal(torch.load(tmp_path / f"rank-{rank}.pt"), wanted)


def test_another_order_would_show() -> None:
    backwards = torch.zeros(SIZE)
    for shard in reversed(range(SHARDS)):
        backwards += vector(0, shard)
    assert not torch.equal(backwards, expected(0))


@pytest.mark.parametrize("world", range(1, 9))
def test_every_rank_computes_a_shard_and_no_shard_is_computed_twice(world: int) -> None:
    for shards in range(world, 20):
        of_ranks = [range(shards)[shards_of(shards, rank, world)] for rank in range(world)]
        assert [shard for of_rank in of_ranks for shard in of_rank] == list(range(shards))
        sizes = {len(of_rank) for of_rank in of_ranks}
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
