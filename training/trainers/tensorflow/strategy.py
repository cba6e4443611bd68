"""The strategy by which TensorFlow's workers train together: each applies the sum of all workers' gradients."""

import ipaddress
import json
import os
import socket
from typing import Any

from training.network_addresses import INTERFACE, own_address
from training.trainers.ranks import Ranks

_CONFIG = "TF_CONFIG"
_BYTES = 16  # of an address; those of IPv4 are padded with zeros


def strategy_of(ranks: Ranks) -> Any:
    """`tf.distribute.MultiWorkerMirroredStrategy` over all workers; the default strategy for a single worker.

    Call it before TensorFlow computes anything. The workers get `TF_CONFIG` as Ray's TensorflowTrainer sets it: the
    address of each worker, in the order of ranks.
    """
    import tensorflow

    if not ranks.distributed:
        return tensorflow.distribute.get_strategy()
    os.environ[_CONFIG] = json.dumps(
        {"cluster": {"worker": _addresses(ranks)}, "task": {"type": "worker", "index": ranks.rank}}
    )
    # On CPUs, this implementation adds the gradients in the order of a ring, which is the same in each step.
    ring = tensorflow.distribute.experimental.CommunicationImplementation.RING
    options = tensorflow.distribute.experimental.CommunicationOptions(implementation=ring)
    return tensorflow.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def _addresses(ranks: Ranks) -> list[str]:
    """`host:port` of each worker, with a port that is free now."""
    import torch

    address = ipaddress.ip_address(own_address(os.environ.get(INTERFACE)))
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_STREAM) as free:
        free.bind((str(address), 0))
        port = free.getsockname()[1]
        own = [address.version, port, *address.packed.ljust(_BYTES, b"\0")]
        rows = ranks.gather(torch.tensor(own, dtype=torch.int64, device=ranks.device))
    return [_text(*row.tolist()) for row in rows]


def _text(version: int, port: int, *packed: int) -> str:
    content = bytes(packed)
    if version == 4:
        return f"{ipaddress.IPv4Address(content[:4])}:{port}"
    return f"[{ipaddress.IPv6Address(content)}]:{port}"
