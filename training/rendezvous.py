"""Where the workers of a training meet: torch's store listens at the address that they were told, and at no other.

By itself it listens at all addresses of the machine, and lets in whoever connects.
"""

import importlib
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.train.torch import TorchConfig


def torch_config(backend: str, timeout_s: int) -> "TorchConfig":
    """Ray Train's set-up of process group `backend`, preceded in each worker by :func:`listen_where_told`."""
    from ray.train.torch import TorchConfig

    whole: Any = TorchConfig().backend_cls

    class Backend(whole):  # type: ignore[misc]  # Ray's class, known at run time
        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            worker_group.execute(listen_where_told)
            super().on_start(worker_group, backend_config)

    class Config(TorchConfig):
        @property
        def backend_cls(self) -> Any:
            return Backend

    return Config(backend=backend, timeout_s=timeout_s)


def listen_where_told() -> None:
    """Let the store of this process, should it be the first worker, listen at its host's address alone."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it without saying so

    def bound(**options: Any) -> TCPStore:
        if options["is_master"]:
            host = options["host_name"]
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                listening = socket.create_server((host, options["port"]), family=family)
            except OSError:  # no address of this machine, as behind some gateways: as torch has it
                pass
            else:
                options["master_listen_fd"] = listening.detach()
        return TCPStore(**options)

    module: Any = importlib.import_module("torch.distributed.rendezvous")
    module.TCPStore = bound
