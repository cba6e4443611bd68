"""The exchange of texts between ranks by threads that write checkpoints, while the training goes on."""

import uuid
from datetime import timedelta
from typing import Any

import torch  # noqa: TID253 - imported by processes that train
import torch.distributed as dist  # noqa: TID253

from training.attempts.fence import Fence
from training.checkpoints.writers import Writers
from training.trainers.ranks import Ranks

# Parts of a checkpoint may take hours to write: LongWork notices when they are stuck.
_TIMEOUT = timedelta(days=7)


def writers_of(ranks: Ranks, fence: Fence) -> Writers:
    """The ranks as writers of one checkpoint; all ranks call this function.

    Only the first rank's `fence` counts.
    """
    if not ranks.distributed:
        return Writers()
    # A separate process group: threads that write use it while the training uses the others.
    group = dist.new_group(backend="gloo", timeout=_TIMEOUT)

    def exchange(text: str) -> list[str]:
        return _gathered(text, ranks.world_size, group)

    token = exchange(f"{fence.number}.{fence.group}-{uuid.uuid4().hex[:8]}")[0]
    return Writers(ranks.rank, ranks.world_size, exchange, token)


def _gathered(text: str, count: int, group: Any) -> list[str]:
    """The texts of all ranks, in the order of ranks."""
    mine = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(count)]
    dist.all_gather(sizes, torch.tensor([len(mine)]), group=group)
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(mine)] = mine
    buffers = [torch.empty_like(padded) for _ in range(count)]
    dist.all_gather(buffers, padded, group=group)
    return [
        bytes(buffer[: int(size)].tolist()).decode().rstrip("\0")
        for buffer, size in zip(buffers, sizes, strict=True)
    ]
