"""Which kind of address this program's hosts use when it starts them itself."""

from __future__ import annotations

import enum
from typing import Any

from roost.actor._addresses import split

_NAMES = {
    "unix": "unix",
    "ipc": "unix",
    "local": "unix",
    "tcp": "tcp",
    "tcpwithlocalhost": "tcp",
    "tcpwithhostname": "tcp",
    "tls": "tcp",
    "metatls": "tcp",
    "metatls-hostname": "tcp",
    "metatlswithhostname": "tcp",
    "metatlswithipv6": "tcp",
    "quic": "tcp",
    "metaquicwithhostname": "tcp",
}


class ChannelTransport(enum.Enum):
    """Kinds of transport that programs name. There are two: sockets of this machine, and TCP under TLS, for
    which all names of network transports stand."""

    Unix = "unix"
    Local = "local"
    Tls = "tls"
    TcpWithLocalhost = "TcpWithLocalhost"
    TcpWithHostname = "TcpWithHostname"
    MetaTlsWithHostname = "MetaTlsWithHostname"
    MetaTlsWithIpV6 = "MetaTlsWithIpV6"
    Quic = "Quic"
    MetaQuicWithHostname = "MetaQuicWithHostname"


_chosen: str | None = None


def enable_transport(transport: ChannelTransport | str) -> None:
    """Chooses how the hosts that this program starts itself are reached: ``"unix"``, ``"tcp"``, or an address
    such as ``"tls://10.0.0.1:26600"`` for this program's own host, which then listens there.

    Attaching works without it: each address says by itself how it is reached.

    Raises:
        ValueError: there is no such transport.
        RuntimeError: another one was chosen, or the program has started already.
    """
    global _chosen
    from roost.actor._runtime import runtime_if_started

    text = transport.value if isinstance(transport, ChannelTransport) else transport
    if not isinstance(text, str):
        raise TypeError(f"a transport is a ChannelTransport or text, not {transport!r}")
    if "://" in text:
        split(text)
        chosen = text
    else:
        known = _NAMES.get(text.lower())
        if known is None:
            raise ValueError(f"there is no transport {text!r}; give 'unix', 'tcp' or tls://HOST:PORT")
        chosen = known
    if chosen == _chosen:
        return
    if _chosen is not None:
        raise RuntimeError(f"the transport is {_chosen!r} already")
    if runtime_if_started() is not None:
        raise RuntimeError("choose the transport before anything else: the program has started")
    _chosen = chosen


def own_address() -> str | None:
    """Where this program's own host has to listen, if anywhere."""
    return _chosen if _chosen is not None and "://" in _chosen else None


def fresh_address() -> str:
    """For a host of this program's own on this machine."""
    if _chosen != "unix":
        return "tcp://127.0.0.1:0"
    import os
    import tempfile

    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return f"unix://{base}/roost-{os.getuid()}-{os.urandom(6).hex()}/host"


def listen_here(here: Any) -> None:
    """Makes this program's own host listen, when the program has asked for that."""
    address = own_address()
    if address is None:
        return
    import json

    from roost.actor._owned import SYSTEM_BOX
    from roost.actor._workers import order
    from roost.errors import HostError

    target = here.node.target(SYSTEM_BOX, [here.agent])
    call = here.node.call(target, b"listen", json.dumps(order(address, None, None, once=False)).encode())
    call.wait(1, 60.0)
    answers = call.take(0, 1)
    told = json.loads(bytes(answers[0][2])) if answers else {"error": "the host agent does not answer"}
    if "error" in told:
        raise HostError(address, "listen", told["error"])
    here.address = told["listening"]
