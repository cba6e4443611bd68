"""The address that workers use follows `scaling.network_interface`."""

import socket
from contextlib import closing

import psutil
import pytest

from training.network_addresses import own_address
from training.ray_cluster import rendezvous


def loopback() -> str:
    """The name of the interface with the address 127.0.0.1."""
    addresses = psutil.net_if_addrs()
    return next(
        name for name, each in addresses.items() if any(address.address == "127.0.0.1" for address in each)
    )


def test_the_store_listens_at_the_address_of_the_interface() -> None:
    host, port = rendezvous.listen(loopback())
    with closing(rendezvous._listening.pop()) as opened:
        assert (host, opened.getsockname()) == ("127.0.0.1", ("127.0.0.1", port))


def test_an_interface_with_several_addresses_gives_that_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    class Address:
        def __init__(self, family: int, address: str):
            self.family, self.address = family, address

    link, unique_local = Address(socket.AF_INET6, "fe80::1%eth7"), Address(socket.AF_INET6, "fd00::7")
    given = {"eth7": [Address(psutil.AF_LINK, "02:00:00:00:00:07"), link, unique_local]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: given)
    assert own_address("eth7") == "fd00::7"
    given["eth7"].append(Address(socket.AF_INET, "10.0.0.7"))
    assert own_address("eth7") == "10.0.0.7"


@pytest.mark.parametrize("unknown", [None, "nowhere0", "^docker"])
def test_without_such_an_interface_the_address_is_that_of_the_node(
    unknown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "10.0.0.9")
    assert own_address(unknown) == "10.0.0.9"
    assert own_address(f"nowhere0,{loopback()}") == "127.0.0.1"
