"""Rank, world size and device of a training process, and the collective operations that the training loop uses."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Ranks:
    """Rank and device of this process. If `distributed` is False, no other process takes part."""

    rank: int
    world_size: int
    device: "torch.device"
    distributed: bool

    @property
    def is_first(self) -> bool:
        """Whether this process is rank 0, which writes the files that only one rank may write."""
        return self.rank == 0

    @classmethod
    def of_this_process(cls, use_gpu: bool) -> "Ranks":
        """For a training without Ray: this process is the only one."""
        import torch

        return cls(0, 1, torch.device("cuda" if use_gpu else "cpu"), distributed=False)

    @classmethod
    def of_ray_worker(cls) -> "Ranks":
        """For a Ray Train worker: its rank and device; sets its GPU as the current CUDA device."""
        import ray.train
        import ray.train.torch
        import torch

        context = ray.train.get_context()
        size = context.get_world_size()
        device = ray.train.torch.get_device()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        return cls(context.get_world_rank(), size, device, distributed=size > 1)

    def add_up(self, *values: "float | torch.Tensor") -> list[float]:
        """All-reduce: the sum of each value over all ranks (float64), on every rank."""
        import torch
        import torch.distributed

        numbers = torch.stack(
            [torch.as_tensor(value, dtype=torch.float64, device=self.device) for value in values]
        )
        if self.distributed:
            torch.distributed.all_reduce(numbers)
        sums: list[float] = numbers.tolist()
        return sums

    def all_equal(self, value: int) -> bool:
        """Whether all ranks have the same `value`: the minimum equals the maximum. Exact below 2**63."""
        import torch
        import torch.distributed

        if not self.distributed:
            return True
        bounds = torch.tensor([value, -value], dtype=torch.int64, device=self.device)
        torch.distributed.all_reduce(bounds, torch.distributed.ReduceOp.MAX)
        largest, smallest = bounds.tolist()
        return bool(largest == -smallest)

    def gather(self, values: "torch.Tensor") -> "list[torch.Tensor]":
        """All-gather: the `values` of each rank (of the same shape and dtype on all ranks), in the order of ranks."""
        import torch
        import torch.distributed

        if not self.distributed:
            return [values]
        gathered = [torch.empty_like(values) for _ in range(self.world_size)]
        torch.distributed.all_gather(gathered, values.contiguous())
        return gathered

    def synchronize(self) -> None:
        """Wait for this rank's GPU, so that its work is not timed as part of the next call that needs a result."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        import torch.distributed

        if self.distributed:
            torch.distributed.barrier()


def device_name(ranks: Ranks) -> str:
    """Name of the device that this rank computes on: the model of its GPU, or `cpu`."""
    import torch

    return torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "cpu"


def backend_name(ranks: Ranks) -> str:
    """Library that adds the ranks' gradients, `gloo` or `nccl`, each in an order of its own; `none` for one rank."""
    import torch.distributed

    return str(torch.distributed.get_backend()) if ranks.distributed else "none"


class ControlConsensus:
    """Agrees on the maximum of all ranks' requests; the result arrives one call later, so no step waits for it."""

    def __init__(self, ranks: Ranks):
        import torch.distributed

        # A separate process group on CPUs: on GPUs, reading the result would wait for all queued work.
        self._group: Any = torch.distributed.new_group(backend="gloo") if ranks.distributed else None
        self._pending: Any = None

    def exchange(self, request: int) -> int:
        """Send this rank's request `request`; returns the maximum over all ranks of the previous call, 0 at first.

        With a single process, returns `request` at once.
        """
        import torch
        import torch.distributed

        if self._group is None:
            return request
        agreed = self._answer()
        requested = torch.tensor([request])
        work = torch.distributed.all_reduce(
            requested, torch.distributed.ReduceOp.MAX, group=self._group, async_op=True
        )
        self._pending = (work, requested)
        return agreed

    def _answer(self) -> int:
        if self._pending is None:
            return 0
        work, requested = self._pending
        work.wait()
        return int(requested)


def prepare_process(threads: int, deterministic: str) -> None:
    """Set torch's number of threads and its determinism (`off`, `warn` or `refuse`) in this process."""
    import torch

    torch.set_num_threads(threads)
    if deterministic != "off":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=deterministic == "warn")
        # For models that read uninitialised memory. Filling it costs up to a sixth of a step on CPUs.
        options: Any = torch.utils.deterministic
        options.fill_uninitialized_memory = deterministic == "refuse"


@contextmanager
def process_settings_kept() -> Iterator[None]:
    """Restore threads, determinism and random generators after a training in the caller's process."""
    import torch

    from training.trainers.generators import generators_kept

    threads, cudnn = torch.get_num_threads(), torch.backends.cudnn.benchmark
    mode = torch.get_deterministic_debug_mode()
    options: Any = torch.utils.deterministic
    filled = options.fill_uninitialized_memory
    try:
        with generators_kept():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = cudnn
        torch.set_deterministic_debug_mode(mode)
        options.fill_uninitialized_memory = filled
