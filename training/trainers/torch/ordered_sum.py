"""An all-reduce with a fixed order: vectors are added in the order of virtual shards, for any number of workers."""

import torch  # noqa: TID253 - imported by processes that train, never by ones that plan or list
import torch.distributed as dist  # noqa: TID253

from training.trainers.network.feeds import shards_of
from training.trainers.ranks import Ranks


class OrderedSum:
    """Adds one float32 vector of `size` numbers per virtual shard, with the same result on every rank.

    Each rank adds one slice of all vectors, in the order of the shards; an all-gather then distributes the slices. A
    vector is sent while the next vector is computed. Buffers are reused, because allocating memory takes several
    times as long as a copy.
    """

    def __init__(self, ranks: Ranks, shards: int, size: int):
        world = ranks.world_size
        slices = [shards_of(shards, rank, world) for rank in range(world)]
        self._counts = [shards_of_rank.stop - shards_of_rank.start for shards_of_rank in slices]
        self._ranks, self._size = ranks, size
        rounds, slice_size = max(self._counts), -(-size // world)
        self._sent = torch.zeros(rounds, world, slice_size, device=ranks.device)
        self._received = torch.empty_like(self._sent) if ranks.distributed else self._sent
        self._slice = torch.empty(slice_size, device=ranks.device)
        self._total = torch.empty(world * slice_size, device=ranks.device)
        self._pending: list[dist.Work] = []

    def vector(self, number: int) -> torch.Tensor:
        """The send buffer (size,) for the vector of this rank's shard `number` (0 for its first)."""
        return self._sent[number].view(-1)[: self._size]

    def send(self, number: int) -> None:
        """Start to send the vector of this rank's shard `number`; it must not change until :meth:`total` returns."""
        if self._ranks.distributed:
            work = dist.all_to_all_single(self._received[number], self._sent[number], async_op=True)
            assert work is not None
            self._pending.append(work)

    def total(self) -> torch.Tensor:
        """The sum (size,) of all vectors, in a buffer that the next call overwrites."""
        for number in range(self._counts[self._ranks.rank], len(self._sent)):
            self.send(number)  # all ranks must join each exchange; other ranks may have more shards
        while self._pending:
            self._pending.pop(0).wait()
        self._slice.zero_()
        for rank, count in enumerate(self._counts):
            for number in range(count):
                self._slice += self._received[number, rank]
        if not self._ranks.distributed:
            return self._slice[: self._size]
        dist.all_gather_into_tensor(self._total, self._slice)
        return self._total[: self._size]
