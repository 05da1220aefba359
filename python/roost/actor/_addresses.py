"""Addresses of hosts: ``tcp://host:port``, ``unix:///path``, and one for others at ``advertised@bind``."""

from __future__ import annotations

import os
from typing import NamedTuple

_TCP = ("tcp", "tls", "metatls", "metatls-hostname")
_UNIX = ("unix", "ipc")


class Listening(NamedTuple):
    """Where a host listens, and what it tells others."""

    bind: str
    advertised: str | None


def split(address: str) -> Listening:
    """The two halves of ``advertised@bind``; a plain address is advertised as it is bound."""
    advertised, at, bind = address.partition("@")
    if not at:
        return Listening(_checked(address), None)
    return Listening(_checked(bind), _checked(advertised))


def to_dial(address: str) -> str:
    """The address that others use, with its name resolved.

    Raises:
        ValueError: not an address.
        ConnectionError: there is no such name.
    """
    return resolve(_checked(address.partition("@")[0]))


def _checked(address: str) -> str:
    wrong = ValueError(f"{address!r} is no address of a host; give tcp://HOST:PORT or unix:///PATH")
    if not isinstance(address, str):
        raise wrong
    scheme, found, rest = address.partition("://")
    if not found or not rest:
        raise wrong
    if scheme in _UNIX:
        return f"unix://{os.path.abspath(rest)}"
    if scheme not in _TCP:
        raise wrong
    host, colon, port = rest.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} has no port; give tcp://HOST:PORT")
    return f"tcp://{host}:{port}"


def resolve(address: str) -> str:
    """The same address with a number in place of a name."""
    scheme, _, rest = address.partition("://")
    if scheme != "tcp":
        return address
    import socket

    host, _, port = rest.rpartition(":")
    host = host.strip("[]")
    if host in ("", "*"):
        return f"tcp://0.0.0.0:{port}"
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectionError(f"{address}: there is no host {host!r} ({error.strerror})") from None
    family, _, _, _, where = min(found, key=lambda one: one[0] != socket.AF_INET)
    return f"tcp://[{where[0]}]:{port}" if family == socket.AF_INET6 else f"tcp://{where[0]}:{port}"


def is_loopback(address: str) -> bool:
    """Whether only processes of this machine can get there."""
    if address.startswith("unix://"):
        return True
    import ipaddress

    host = resolve(address).partition("://")[2].rpartition(":")[0].strip("[]")
    return ipaddress.ip_address(host).is_loopback
