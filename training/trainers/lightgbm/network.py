"""The network of LightGBM's workers: connections between all of them, which every collective operation uses."""

import os
import socket
from contextlib import closing

import torch  # noqa: TID253 - imported by processes that train

from training.errors import SettingError, TransientError
from training.trainers.ranks import Ranks

_CONNECT_S = 20.0


def network_parameters(ranks: Ranks, timeout_s: float) -> dict[str, str | int]:
    """LightGBM's parameters of the network; empty for a single worker. All workers take part.

    Each worker chooses a free port. LightGBM listens there, on all addresses of the machine and without
    authentication, until all workers are connected. `timeout_s` is rounded up to whole minutes, LightGBM's unit.

    Raises :class:`TransientError` if a worker can't reach the port of another: LightGBM itself would wait without end.
    """
    if not ranks.distributed:
        return {}
    address = _own_address()
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as listener:
        listener.bind(("", 0))
        listener.listen(ranks.world_size)
        port = int(listener.getsockname()[1])
        mine = torch.tensor([*socket.inet_aton(address), port], dtype=torch.int64, device=ranks.device)
        machines = [_place(endpoint.tolist()) for endpoint in ranks.gather(mine)]
        for host, other in machines:
            _try(host, other)
        ranks.barrier()  # no worker closes its port before the others have tried it
    # LightGBM of a faster worker would reach the port of a slower one before it is closed, and lose that connection.
    ranks.barrier()
    return {
        "machines": ",".join(f"{host}:{other}" for host, other in machines),
        "num_machines": ranks.world_size,
        "local_listen_port": port,
        "time_out": max(1, -int(-timeout_s // 60)),
    }


def _place(numbers: list[int]) -> tuple[str, int]:
    *octets, port = numbers
    return socket.inet_ntoa(bytes(octets)), port


def _try(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        raise TransientError(
            f"trainer lightgbm: a worker can't connect to the worker at {host}:{port} ({error}). LightGBM's workers "
            "need all ports open to each other: open them in the firewall, or train with scaling.num_workers=1."
        ) from error


def _own_address() -> str:
    """The IPv4 address of this machine towards the first worker."""
    first = os.environ["MASTER_ADDR"]  # set for each worker when the workers meet
    try:
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
            probe.connect((first, 9))  # sends nothing: chooses the address of the route
            return str(probe.getsockname()[0])
    except OSError as error:
        raise SettingError(
            f"trainer lightgbm: no IPv4 address leads to the first worker at {first} ({error}), and LightGBM uses IPv4 "
            "alone. Set scaling.network_interface to an interface with IPv4, or train with scaling.num_workers=1."
        ) from error
