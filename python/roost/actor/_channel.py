"""Channels: a port to send to from anywhere, and the queue that it leads to."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from roost.actor._receiver import ERROR, VALUE, PortReceiver, Queue
from roost.actor._serialize import dump
from roost.errors import UndeliverableError

T = TypeVar("T")


def sender_rank() -> int:
    """Rank of the running actor in the mesh that its message was sent to; 0 elsewhere."""
    from roost.actor._context import _current

    context = _current.get()
    return 0 if context is None else context._rank


class Port(Generic[T]):
    """Where to send. Ports travel in messages and lead to their receiver from everywhere.

    Attributes:
        return_undeliverable: raise UndeliverableError when the receiver is known to be gone; otherwise such
            a message is dropped, and counted in a warning.
    """

    __slots__ = ("_address", "_home", "_once", "_rank", "_used", "return_undeliverable")

    def __init__(self, address: Any, *, once: bool = False, rank: int | None = None) -> None:
        self._address = address
        self._home: tuple[int, str] | None = None
        self._once = once
        self._used = False
        self._rank = rank
        self.return_undeliverable = False

    def send(self, value: T) -> None:
        """Sends a value.

        Raises:
            SerializationError: the value cannot be pickled.
            RuntimeError: the port takes one message and has had it.
            UndeliverableError: see ``return_undeliverable``.
        """
        self._post(0, *dump(value))

    def exception(self, error: BaseException) -> None:
        """Sends an exception: the receiver raises it."""
        from roost.errors import pack_exception

        try:
            packed = dump(pack_exception(error))
        except Exception:
            from roost.errors import RemoteException

            kind = type(error)
            stand_in = RemoteException(f"{kind.__module__}.{kind.__qualname__}", str(error))
            packed = dump(stand_in)
        self._post(1, *packed)

    def _post(self, status: int, body: bytes, buffers: Any) -> None:
        from roost.actor._runtime import runtime

        if self._once:
            if self._used:
                raise RuntimeError("this port takes one message, and one was sent")
            self._used = True
        rank = sender_rank() if self._rank is None else self._rank
        meta = (ERROR if status else VALUE) + rank.to_bytes(4, "little")
        node = runtime().node
        reached = node.cast(runtime().port_target(self._address), meta, body, buffers)
        if reached:
            return
        if self._once:
            raise RuntimeError("this port takes one message, and one was sent")
        if self.return_undeliverable:
            raise UndeliverableError("the port's receiver is closed, or the process that held it is gone")
        import logging

        logging.getLogger("roost").debug("%r: its receiver is gone; a message was dropped", self)

    def __repr__(self) -> str:
        return f"<Port {self._address[2]:x}>"

    def __reduce__(self) -> Any:
        from roost.actor._runtime import runtime

        here = runtime()
        # The host that the receiver is on, so that a third host finds it.
        home = self._home or (here.agent[0], here.address)
        return _rebuild_port, (self._address, self._once, self._rank, self.return_undeliverable, home)


def _rebuild_port(
    address: Any, once: bool, rank: int | None, undeliverable: bool, home: tuple[int, str]
) -> Port[Any]:
    from roost.actor._runtime import runtime

    port: Port[Any] = Port(address, once=once, rank=rank)
    port._home = home
    here = runtime()
    if home[0] != here.agent[0]:
        here.node.learn_proc(address[:2], *home)
    port.return_undeliverable = undeliverable
    return port


class ResponsePort(Port[T]):
    """The port of an endpoint with ``explicit_response_port``: leads to the one who called."""

    __slots__ = ("_actor", "_request", "_settled")

    def __init__(self, request: Any, rank: int, actor: str) -> None:
        super().__init__(request.key, rank=rank)
        self._request = request
        self._actor = actor
        self._settled = False

    def _post(self, status: int, body: bytes, buffers: Any) -> None:
        self._settled = True
        self._request.reply(status, body, buffers)

    def exception(self, error: BaseException) -> None:
        from roost.actor._reports import dump_report

        self._post(1, *dump_report(error, self._actor, {}))

    def __repr__(self) -> str:
        return f"<Port to the caller of {self._actor}>"

    def __reduce__(self) -> Any:
        # A port that leaves its process is answered through a relay in this one.
        from roost.actor._relay import relay_port

        self._settled = True
        return relay_port(self).__reduce__()

    def __del__(self) -> None:
        if self._settled:
            return
        try:
            self.exception(RuntimeError(f"{self._actor} dropped its response port without an answer"))
        except Exception:
            return  # the interpreter ends


class NullPort(Port[Any]):
    """The port of a message that nobody waits for: answers are dropped, errors are not."""

    __slots__ = ()

    def __init__(self, rank: int) -> None:
        super().__init__((0, 0, 0), rank=rank)

    def _post(self, status: int, body: bytes, buffers: Any) -> None:
        return

    def exception(self, error: BaseException) -> None:
        raise error


class Channel(Generic[T]):
    """Makes pairs of a port and its receiver."""

    @staticmethod
    def open(once: bool = False) -> tuple[Port[Any], PortReceiver[Any]]:
        """A port and the queue that it leads to.

        Args:
            once: the channel is for one message.
        """
        from roost.actor._runtime import runtime

        here = runtime()
        mailbox = here.node.open_fresh_box()
        address = (*here.me, mailbox.id)
        return Port(address, once=once), PortReceiver(Queue(mailbox, once=once), once=once)

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[Any], PortReceiver[tuple[int, Any]]]:
        """As :meth:`open`; what is received are pairs of the sender's rank and the value."""
        port, receiver = Channel.open(once)
        receiver._ranked = True
        return port, receiver
