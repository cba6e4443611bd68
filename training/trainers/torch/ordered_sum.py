"""A sum of vectors over all workers whose order is that of the vectors, not that of the workers."""

import torch  # noqa: TID253 - imported by processes that train, never by ones that plan or list
import torch.distributed as dist  # noqa: TID253

from training.trainers.torch.feeds import shards_of
from training.trainers.torch.ranks import Ranks


class OrderedSum:
    """Adds up one float32 vector of `size` numbers for each of `shards` virtual shards, the same on every rank.

    Each rank adds up one slice of all vectors, in the order of the shards, and then gives it to the others. A vector
    goes out while the next one is computed. All memory is kept: fresh memory costs several times a copy.
    """

    def __init__(self, ranks: Ranks, shards: int, size: int):
        world = ranks.world_size
        of_ranks = [shards_of(shards, rank, world) for rank in range(world)]
        self._counts = [of_rank.stop - of_rank.start for of_rank in of_ranks]
        self._ranks, self._size = ranks, size
        rounds, slice_size = max(self._counts), -(-size // world)
        self._sent = torch.zeros(rounds, world, slice_size, device=ranks.device)
        self._received = torch.empty_like(self._sent) if ranks.distributed else self._sent
        self._slice = torch.empty(slice_size, device=ranks.device)
        self._total = torch.empty(world * slice_size, device=ranks.device)
        self._pending: list[dist.Work] = []

    def vector(self, number: int) -> torch.Tensor:
        """Where the vector of this rank's `number`-th shard is to be put (size,)."""
        return self._sent[number].view(-1)[: self._size]

    def send(self, number: int) -> None:
        """Hand out the vector of this rank's `number`-th shard; it must not be changed until :meth:`total`."""
        if self._ranks.distributed:
            work = dist.all_to_all_single(self._received[number], self._sent[number], async_op=True)
            assert work is not None
            self._pending.append(work)

    def total(self) -> torch.Tensor:
        """The sum (size,), in memory that the next call uses again."""
        for number in range(self._counts[self._ranks.rank], len(self._sent)):
            self.send(number)  # others have one more shard, and an exchange takes all ranks
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
