"""Replicas whose forward and backward passes are collective: each pass gathers weights of all ranks."""

import math
from collections.abc import Callable, Sequence

import torch  # noqa: TID253 - imported by processes that train, never by ones that plan or list
import torch.distributed as dist  # noqa: TID253

from training.data.dataset import Columns
from training.data.sample_order import Rows
from training.trainers.network.feeds import Batch
from training.trainers.network.inputs import example_inputs
from training.trainers.network.validation import rows_at_once
from training.trainers.torch.replica import Replica


class CollectiveReplica(Replica):
    """A :class:`Replica` of which all ranks do equally many passes, because each pass is collective."""

    def step(self, batch: Batch, epoch: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As in :class:`Replica`; each step begins with the first rank's buffers, as DDP's forward passes do."""
        self.same_buffers()
        return super().step(batch, epoch, step)

    def same_buffers(self) -> None:
        """Broadcast the first rank's buffers (running statistics), which the checkpoint holds, to all ranks."""
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for buffer in self.module.buffers():
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
        for buffers in by_dtype.values():
            together = torch.cat([buffer.flatten() for buffer in buffers])
            dist.broadcast(together, src=0)
            sizes = [buffer.numel() for buffer in buffers]
            for buffer, values in zip(buffers, torch.split(together, sizes), strict=True):
                buffer.copy_(values.view_as(buffer))

    def passes(self, tensor: torch.Tensor, batch: Batch) -> Sequence[torch.Tensor]:
        """As in :class:`Replica`, with the same number of passes on each rank."""
        return tensor.tensor_split(self.passes_of(batch.global_rows // self.ranks.world_size))

    def after_validation(self) -> None:
        """Called after the passes of a validation."""

    def sums_over(
        self, columns: Columns, rows: Rows, progress: Callable[[], None]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As in :class:`Replica`; ranks with fewer batches than others compute further ones and ignore the results."""
        batches = math.ceil(len(rows) / rows_at_once(self.objective, self.version, self.settings))
        most = max(map(int, self.ranks.gather(torch.tensor([batches], device=self.ranks.device))))
        sums = super().sums_over(columns, rows, progress)
        self.module.eval()
        with self.without_gradients(), self._autocast():
            for _ in range(most - batches):
                self._output(example_inputs(self.version, 1).to(self.ranks.device))
        self.to_training()
        self.after_validation()
        return sums
