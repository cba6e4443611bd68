"""Virtual shards: bit-identical weights for any number of workers (`training.virtual_shards`).

A floating-point sum depends on the order of its terms, and the order in an all-reduce depends on the number of ranks.
So each step is split into a fixed number of virtual shards, for any number of workers, and the gradients of all
shards are added in the order of the shards. The method is that of EasyScale (M. Li et al., "EasyScale: Elastic
Training with Consistent Accuracy and Improved Utilization on GPUs", SC 2023). Its cost: each shard's gradients are
sent, instead of one overlapped all-reduce per step, and each forward and backward pass has fewer rows.
"""

import time
from collections.abc import Callable

import numpy as np
import torch  # noqa: TID253 - imported by processes that train, never by ones that plan or list
from torch import nn  # noqa: TID253

from training.data.dataset import Columns
from training.data.sample_order import Rows
from training.trainers.network.checksums import words
from training.trainers.network.feeds import Batch, shards_of
from training.trainers.own_loop.schedule import set_learning_rate
from training.trainers.torch.ordered_sum import OrderedSum
from training.trainers.torch.own_settings import own_settings
from training.trainers.torch.replica import Replica

_BITS, _PIECES = 24, 3  # float32 has integers up to 2**24; three pieces make an int64


class ShardedReplica(Replica):
    """A :class:`Replica` whose results are bit-identical for any number of workers."""

    same_for_any_workers = True
    _sum: OrderedSum | None = None

    def wrap(self) -> nn.Module:
        """Return the module without DDP: this class exchanges the gradients itself."""
        return self.module

    @property
    def shards(self) -> int:
        """Number of virtual shards of a step, over all workers."""
        count = own_settings(self.settings).virtual_shards
        assert count is not None
        return count

    @property
    def parts(self) -> int:
        """As in :class:`Replica`: the number of shards."""
        return self.shards

    def step(self, batch: Batch, epoch: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one optimizer step. The first rank returns all workers' sums of loss and metric, the others zeros."""
        set_learning_rate(self.optimizer, self.learning_rate(step))
        first = shards_of(self.shards, self.ranks.rank, self.ranks.world_size).start
        before = [buffer.clone() for buffer in self.module.buffers()]
        gradients, sums = self._gradients(), []
        for number, piece in enumerate(batch.split()):
            self._restore(before)
            losses, scores = self.add_gradients(piece, epoch, step, first + number, 1 / batch.global_rows)
            self._take(gradients.vector(number), before, first + number)
            gradients.send(number)
            sums.append(torch.stack([losses, scores.double()]))
        began = time.perf_counter()
        total = gradients.total()
        self.communication.exposed_s += time.perf_counter() - began
        self._put(total, before)
        self.update()
        losses, scores = self._in_order(sums, torch.zeros(2, dtype=torch.float64, device=self.ranks.device))
        return (losses, scores) if self.ranks.is_first else (0 * losses, 0 * scores)

    def validate(
        self, columns: Columns, rows: Rows, progress: Callable[[], None] = lambda: None
    ) -> tuple[float, float]:
        """Mean loss and metric over `rows`, added in the same parts and order for any number of workers."""
        mine = np.array_split(rows, self.shards)[
            shards_of(self.shards, self.ranks.rank, self.ranks.world_size)
        ]
        sums = [torch.stack(self.sums_over(columns, part, progress)).to(self.ranks.device) for part in mine]
        zero = torch.zeros(2, dtype=torch.float64, device=self.ranks.device)
        loss, score = self._in_order(sums, zero).tolist()
        return loss / len(rows), self.objective.reduced(score, len(rows))

    def _gradients(self) -> OrderedSum:
        if self._sum is None:
            size = sum(part.numel() for part in self._trained())
            size += sum(_sent_numbers(_real(buffer)) for buffer in self.module.buffers())
            self._sum = OrderedSum(self.ranks, self.shards, size)
        return self._sum

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def _restore(self, before: list[torch.Tensor]) -> None:
        for buffer, value in zip(self.module.buffers(), before, strict=True):
            buffer.copy_(value)

    def _take(self, vector: torch.Tensor, before: list[torch.Tensor], shard: int) -> None:
        """Copy the current shard's gradients and buffers into `vector`, then clear the gradients.

        `before` are the values of the buffers before the step, and `shard` is the number of the shard.
        """
        grads = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in self._trained()
        ]
        buffers = [
            part
            for buffer, old in zip(self.module.buffers(), before, strict=True)
            for part in _to_send(_real(buffer), _real(old), shard)
        ]
        torch.cat([part.detach().flatten().float() for part in [*grads, *buffers]], out=vector)
        self.optimizer.zero_grad(set_to_none=True)

    def _put(self, total: torch.Tensor, before: list[torch.Tensor]) -> None:
        """Set gradients to their sum, and buffers as :func:`_received` says; `total` has the sums over all shards."""
        start = 0
        for parameter in self._trained():
            stop = start + parameter.numel()
            parameter.grad = _laid_out(total[start:stop], parameter)
            start = stop
        for buffer, old in zip(self.module.buffers(), before, strict=True):
            stop = start + _sent_numbers(_real(buffer))
            _real(buffer).copy_(_received(total[start:stop], _real(old), self.shards))
            start = stop

    def _in_order(self, mine: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """Sum of all workers' vectors, one per shard, added in the order of the shards; the same on every rank."""
        world = self.ranks.world_size
        counts = [len(range(self.shards)[shards_of(self.shards, rank, world)]) for rank in range(world)]
        padded = torch.stack([*mine, *(torch.zeros_like(like) for _ in range(max(counts) - len(mine)))])
        total = torch.zeros_like(like)
        for vectors, count in zip(self.ranks.gather(padded), counts, strict=True):
            for vector in vectors[:count]:
                total += vector
        return total


def _real(buffer: torch.Tensor) -> torch.Tensor:
    """The buffer, with complex numbers as pairs of real numbers in the same memory."""
    return torch.view_as_real(buffer) if buffer.is_complex() else buffer


def _sent_numbers(buffer: torch.Tensor) -> int:
    """How many numbers of float32 each shard sends for a buffer."""
    if buffer.is_floating_point():
        return buffer.numel() + 1
    return buffer.numel() * (1 if buffer.dtype is torch.bool else _PIECES)


def _to_send(buffer: torch.Tensor, old: torch.Tensor, shard: int) -> list[torch.Tensor]:
    """The numbers that shard number `shard` sends for a buffer, whose value before the step was `old`.

    Of a floating-point buffer these are its values, and 1 if they differ from `old`, else 0. Of integers, the first
    shard alone sends the values, in pieces of 24 bits, which float32 holds exactly.
    """
    if buffer.is_floating_point():
        return [buffer, (words(buffer) != words(old)).any()]
    if buffer.dtype is torch.bool:
        return [buffer * (shard == 0)]
    whole = buffer.long() * (shard == 0)
    return [whole >> (_BITS * piece) & (1 << _BITS) - 1 for piece in range(_PIECES)]


def _received(sums: torch.Tensor, old: torch.Tensor, shards: int) -> torch.Tensor:
    """The value of a buffer after a step, from the sums over all shards of what :func:`_to_send` gave.

    For running statistics the mean over the shards; but `old` if no shard changed the buffer, as a mean could round.
    For integers the value of the first shard, as DDP keeps that of the first rank.
    """
    if old.is_floating_point():
        mean = (sums[:-1] / shards).view_as(old).to(old.dtype)
        return torch.where(sums[-1] > 0, mean, old)
    if old.dtype is torch.bool:
        return sums.view_as(old) > 0
    pieces = sums.long().view(_PIECES, *old.shape)
    whole: torch.Tensor = sum(pieces[piece] << (_BITS * piece) for piece in range(_PIECES))  # type: ignore[assignment]
    return whole


def _laid_out(values: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """A gradient of `values`, with the parameter's layout in memory.

    Fused optimizers go through parameter and gradient in the order of memory, which differs from the order of
    `values` with `training.channels_last`.
    """
    if parameter.is_contiguous():
        return values.view_as(parameter).to(parameter.dtype)
    return torch.empty_like(parameter).copy_(values.view_as(parameter))
