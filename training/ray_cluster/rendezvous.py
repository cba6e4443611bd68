"""Rendezvous of the workers: Ray Train joins them into a torch.distributed process group.

Ray's own `TorchConfig` does the same with two drawbacks. `TorchConfig` imports torch into the process that starts the
workers, before they start, which takes two seconds. And its store listens at all addresses and accepts every
connection; the store here listens only at the address that the workers get, if this machine has that address.
"""

import os
import socket
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from training.network_addresses import INTERFACE, own_address

if TYPE_CHECKING:
    from ray.train import BackendConfig
    from ray.train.backend import Backend

_LEAVE_TIMEOUT_S = 30.0

_listening: list[socket.socket] = []  # the first worker's socket, until torch takes it over


class RendezvousInfo(NamedTuple):
    """What a worker needs to join the process group of `size` workers: the first worker's store is at `host`:`port`.

    `timeout_s` (seconds) limits the rendezvous and each collective operation. `environment` holds variables that
    torch and its libraries read when they are loaded.
    """

    backend: str
    timeout_s: int
    host: str
    port: int
    size: int
    environment: dict[str, str]


def process_group(backend: str, timeout_s: int, environment: dict[str, str]) -> "BackendConfig":
    """Configuration by which Ray Train sets up torch's process group over all workers.

    `backend` is `gloo` or `nccl`. Each worker gets the variables of `environment` before it loads torch.
    """
    import ray
    from ray.exceptions import GetTimeoutError
    from ray.train import BackendConfig
    from ray.train.backend import Backend

    class Joined(Backend):
        share_cuda_visible_devices = True  # NCCL reaches the other GPUs of a node directly

        def on_start(self, worker_group: Any, _config: BackendConfig) -> None:
            host, port = worker_group.execute_single(0, listen, environment.get(INTERFACE))
            meeting = RendezvousInfo(backend, timeout_s, host, port, len(worker_group), environment)
            joined = [
                worker_group.execute_single_async(rank, join, meeting, rank) for rank in range(meeting.size)
            ]
            ray.get(joined)

        def on_shutdown(self, worker_group: Any, _config: BackendConfig) -> None:
            with suppress(GetTimeoutError):  # the workers end right after in any case
                ray.get(worker_group.execute_async(leave), timeout=_LEAVE_TIMEOUT_S)

    class ProcessGroup(BackendConfig):
        def __init__(self) -> None:
            self.backend = backend  # Ray's TorchTrainer asks for it

        @property
        def backend_cls(self) -> "type[Backend]":
            return Joined

    return ProcessGroup()


def listen(interface: str | None = None) -> tuple[str, int]:
    """Open the socket of the store on the first worker; returns the worker's address and the socket's port.

    The address is that of the network interface `interface`, by default the node's. The socket listens at all
    addresses where this machine does not have this address.
    """
    host = own_address(interface)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        opened = socket.create_server((host, 0), family=family)
    except OSError:  # the node's address is not an address of this machine, as behind some gateways
        opened = socket.create_server(("", 0), family=family)
    _listening[:] = [opened]
    return host, opened.getsockname()[1]


def join(meeting: RendezvousInfo, rank: int) -> None:
    """Join the process group as rank `rank`; returns when all workers have joined."""
    os.environ |= meeting.environment
    import torch.distributed
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it without saying so

    _tell_libraries(meeting, rank)
    limit = timedelta(seconds=meeting.timeout_s)
    store = TCPStore(
        meeting.host,
        meeting.port,
        meeting.size,
        is_master=rank == 0,
        timeout=limit,
        master_listen_fd=_listening.pop().detach() if rank == 0 else None,
    )
    torch.distributed.init_process_group(
        meeting.backend, store=store, rank=rank, world_size=meeting.size, timeout=limit
    )


def _tell_libraries(meeting: RendezvousInfo, rank: int) -> None:
    """Set the variables that torchrun sets: a recipe and the libraries that it uses may read them."""
    import ray.train

    context = ray.train.get_context()
    os.environ |= {
        "MASTER_ADDR": meeting.host,
        "MASTER_PORT": str(meeting.port),
        "RANK": str(rank),
        "WORLD_SIZE": str(meeting.size),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "NODE_RANK": str(context.get_node_rank()),
    }


def leave() -> None:
    """Leave the process group, if this worker joined it."""
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
