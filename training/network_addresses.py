"""The address at which other machines reach this one."""

import socket

INTERFACE = "GLOO_SOCKET_IFNAME"  # a worker's variable with the name of the interface, which gloo reads


def own_address(interface: str | None) -> str:
    """This machine's address at the network interface `interface`, by which other machines reach it.

    `interface` is one name, such as eth0, or several with commas between them; an IPv4 address is preferred. If this
    machine has no such interface, also for None and for a pattern that only NCCL understands, returns the address by
    which Ray knows this machine.
    """
    import psutil
    import ray.util

    interfaces = psutil.net_if_addrs()
    addresses = [
        each.address
        for family in (socket.AF_INET, socket.AF_INET6)
        for name in (interface or "").split(",")
        for each in interfaces.get(name, ())
        if each.family is family and "%" not in each.address  # IPv6 for this link alone
    ]
    node: str = addresses[0] if addresses else ray.util.get_node_ip_address()
    return node
