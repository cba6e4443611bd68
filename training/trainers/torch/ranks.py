"""Who computes what: one value that names rank, world size and device, and the few collectives the loop needs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Ranks:
    """This process's place in the training. `world_size` 1 with `distributed` False needs no process group."""

    rank: int
    world_size: int
    device: "torch.device"
    distributed: bool

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    @classmethod
    def of_this_process(cls, use_gpu: bool) -> "Ranks":
        """The only process of a training without Ray."""
        import torch

        return cls(0, 1, torch.device("cuda" if use_gpu else "cpu"), distributed=False)

    @classmethod
    def of_ray_worker(cls) -> "Ranks":
        """This Ray Train worker's place."""
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
        """Sum each value over all ranks; every rank gets the sums."""
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
        """Whether every rank has the same `value`: the smallest of all is also the largest. Exact up to 2**63."""
        import torch
        import torch.distributed

        if not self.distributed:
            return True
        bounds = torch.tensor([value, -value], dtype=torch.int64, device=self.device)
        torch.distributed.all_reduce(bounds, torch.distributed.ReduceOp.MAX)
        largest, smallest = bounds.tolist()
        return bool(largest == -smallest)

    def gather(self, values: "torch.Tensor") -> "list[torch.Tensor]":
        """Each rank's `values` (a tensor of the same shape and type on all), in the order of ranks."""
        import torch
        import torch.distributed

        if not self.distributed:
            return [values]
        found = [torch.empty_like(values) for _ in range(self.world_size)]
        torch.distributed.all_gather(found, values.contiguous())
        return found

    def synchronize(self) -> None:
        """Wait for this rank's own device, so that its work is not booked on whoever asks for a result first."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def barrier(self) -> None:
        """Wait for all ranks."""
        import torch.distributed

        if self.distributed:
            torch.distributed.barrier()


def device_name(ranks: Ranks) -> str:
    """What this rank computes on: the model of its GPU, or `cpu`."""
    import torch

    return torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "cpu"


class ControlConsensus:
    """The largest of all ranks' wishes, known one step later, so that no step waits to hear it."""

    def __init__(self, ranks: Ranks):
        import torch.distributed

        # A group of its own on CPUs: on GPUs, a look at the answer would wait for all work that is queued.
        self._group: Any = torch.distributed.new_group(backend="gloo") if ranks.distributed else None
        self._pending: Any = None

    def exchange(self, wish: int) -> int:
        """Tell this rank's wish; returns what all ranks agreed on the call before (0 at first)."""
        import torch
        import torch.distributed

        if self._group is None:
            return wish
        agreed = self._answer()
        told = torch.tensor([wish])
        work = torch.distributed.all_reduce(
            told, torch.distributed.ReduceOp.MAX, group=self._group, async_op=True
        )
        self._pending = (work, told)
        return agreed

    def _answer(self) -> int:
        if self._pending is None:
            return 0
        work, told = self._pending
        work.wait()
        return int(told)


def prepare_process(threads: int, deterministic: str) -> None:
    """Set threads and determinism of torch for this process."""
    import torch

    torch.set_num_threads(threads)
    if deterministic != "off":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=deterministic == "warn")
        # Against models that read memory which nobody wrote; it costs up to a sixth of a step on CPUs.
        options: Any = torch.utils.deterministic
        options.fill_uninitialized_memory = deterministic == "refuse"


@contextmanager
def process_settings_kept() -> Iterator[None]:
    """Put threads, determinism and random generators back after a training in the caller's process."""
    import torch

    from training.trainers.torch.generators import generators_kept

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
