"""The network of LightGBM's workers: connections between all of them, which every collective operation uses."""

import os
import socket
from contextlib import closing

import torch  # noqa: TID253 - imported by processes that train

from training.trainers.ranks import Ranks


def network_parameters(ranks: Ranks, timeout_s: float) -> dict[str, str | int]:
    """LightGBM's parameters of the network; empty for a single worker. All workers take part.

    Each worker chooses a free port of its own. LightGBM listens there, on all addresses of the machine and without
    authentication, until all workers are connected. `timeout_s` is rounded up to whole minutes, LightGBM's unit.
    """
    if not ranks.distributed:
        return {}
    address, port = _own_address(), _free_port()
    mine = torch.tensor([*socket.inet_aton(address), port], dtype=torch.int64, device=ranks.device)
    machines = []
    for found in ranks.gather(mine):
        *octets, other = found.tolist()
        machines.append(f"{socket.inet_ntoa(bytes(octets))}:{other}")
    return {
        "machines": ",".join(machines),
        "num_machines": ranks.world_size,
        "local_listen_port": port,
        "time_out": max(1, -int(-timeout_s // 60)),
    }


def _own_address() -> str:
    """The address of this machine towards the first worker."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))  # sends nothing: chooses the address of the route
        return str(probe.getsockname()[0])


def _free_port() -> int:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
