"""Channels: a port to send to from anywhere, and the queue that it leads to."""

from __future__ import annotations

import collections
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roost import _core
from roost.actor._future import Future, Source
from roost.actor._serialize import dump, load
from roost.errors import UndeliverableError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_VALUE, _ERROR = b"v", b"e"


def sender_rank() -> int:
    """Rank of the running actor in the mesh that its message was sent to; 0 elsewhere."""
    from roost.actor._context import _current

    context = _current.get()
    return 0 if context is None else context._rank


class Port(Generic[T]):
    """Where to send. Ports travel in messages and lead to their receiver from everywhere.

    Attributes:
        return_undeliverable: raise UndeliverableError when the receiver's process is known to be gone;
            otherwise such a message is dropped and counted.
    """

    __slots__ = ("_address", "_once", "_rank", "_used", "return_undeliverable")

    def __init__(self, address: Any, *, once: bool = False, rank: int | None = None) -> None:
        self._address = address
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
        meta = (_ERROR if status else _VALUE) + rank.to_bytes(4, "little")
        node = runtime().node
        reached = node.cast(runtime().port_target(self._address), meta, body, buffers)
        if not reached and self.return_undeliverable:
            raise UndeliverableError("the process that held the port's receiver is gone")

    def __repr__(self) -> str:
        return f"<Port {self._address[2]:x}>"

    def __reduce__(self) -> Any:
        return _rebuild_port, (self._address, self._once, self._rank, self.return_undeliverable)


def _rebuild_port(address: Any, once: bool, rank: int | None, undeliverable: bool) -> Port[Any]:
    port: Port[Any] = Port(address, once=once, rank=rank)
    port.return_undeliverable = undeliverable
    return port


class ResponsePort(Port[T]):
    """The port of an endpoint with ``explicit_response_port``: leads to the one who called."""

    __slots__ = ("_actor", "_request")

    def __init__(self, request: Any, rank: int, actor: str) -> None:
        super().__init__(request.key, rank=rank)
        self._request = request
        self._actor = actor

    def _post(self, status: int, body: bytes, buffers: Any) -> None:
        self._request.reply(status, body, buffers)

    def exception(self, error: BaseException) -> None:
        from roost.actor._reports import dump_report

        self._post(1, *dump_report(error, self._actor, {}))

    def __repr__(self) -> str:
        return f"<Port to the caller of {self._actor}>"

    def __reduce__(self) -> Any:
        # A port that leaves its process is answered through a relay in this one.
        from roost.actor._relay import relay_port

        return relay_port(self).__reduce__()


class NullPort(Port[Any]):
    """The port of a message that nobody waits for: answers are dropped, errors are not."""

    __slots__ = ()

    def __init__(self, rank: int) -> None:
        super().__init__((0, 0, 0), rank=rank)

    def _post(self, status: int, body: bytes, buffers: Any) -> None:
        return

    def exception(self, error: BaseException) -> None:
        raise error


class _Receive(Source):
    """The next message of a receiver that nobody else has asked for."""

    __slots__ = ("_filled", "_message", "_receiver", "_waiting_bell")

    def __init__(self, receiver: PortReceiver[Any]) -> None:
        self._receiver = receiver
        self._filled = False
        self._message: Any = None
        self._waiting_bell: tuple[Any, int] | None = None

    def fill(self, message: Any) -> None:
        self._message, self._filled = message, True
        if self._waiting_bell is not None:
            bell, token = self._waiting_bell
            bell.ring(token)

    def is_ready(self) -> bool:
        if not self._filled:
            self._receiver._distribute(0.0)
        return self._filled

    def wait(self, timeout: float | None, mailbox: Any) -> int:
        import time

        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._filled:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if mailbox is not None:
                if mailbox.has_urgent:
                    return _core.URGENT
                left = 0.05 if left is None else min(left, 0.05)
            self._receiver._distribute(left)
            if not self._filled and deadline is not None and time.monotonic() >= deadline:
                return _core.TIMED_OUT
        return _core.READY

    def ring(self, bell: Any, token: int) -> None:
        self._waiting_bell = (bell, token)
        if self.is_ready():
            bell.ring(token)
        else:
            self._receiver._watch(bell)

    def result(self) -> Any:
        return self._receiver._convert(self._message)


class PortReceiver(Generic[T]):
    """The queue behind a port. Messages of one sender come in the order sent."""

    def __init__(self, mailbox: Any, *, once: bool = False, ranked: bool = False) -> None:
        self._mailbox = mailbox
        self._once = once
        self._ranked = ranked
        self._used = False
        self._ready: collections.deque[Any] = collections.deque()
        self._asked: collections.deque[_Receive] = collections.deque()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._watched: Any = None

    def recv(self) -> Future[T]:
        """The next message, in the order of calls to ``recv``; an exception that was sent is raised.

        Raises:
            ValueError: the channel is for one message, and one was asked for.
        """
        if self._once:
            if self._used:
                raise ValueError("this channel is for one message, and it was received")
            self._used = True
        ask = _Receive(self)
        with self._lock:
            if self._ready and not self._asked:
                ask.fill(self._ready.popleft())
            else:
                self._asked.append(ask)
        return Future._of(ask)

    def ranked(self) -> PortReceiver[tuple[int, T]]:
        """The same queue, whose messages are pairs of the sender's rank and the value."""
        twin: PortReceiver[Any] = PortReceiver(self._mailbox, once=self._once, ranked=True)
        twin._ready, twin._asked = self._ready, self._asked
        twin._lock, twin._reading = self._lock, self._reading
        return twin

    def _distribute(self, timeout: float | None) -> None:
        """Takes messages from the engine and gives them to those who asked first."""
        if not self._reading.acquire(timeout=-1 if timeout is None else timeout):
            return
        try:
            if self._watched is None:
                self._mailbox.read_by_thread()
            with self._lock:
                if not self._asked:
                    return
            messages = self._mailbox.take(256, timeout)
            with self._lock:
                self._ready.extend(messages)
                while self._ready and self._asked:
                    self._asked.popleft().fill(self._ready.popleft())
        finally:
            self._reading.release()

    def _watch(self, bell: Any) -> None:
        """From now on the loop of this bell brings the messages."""
        from roost.actor._bells import bell_for

        if self._watched is not bell:
            self._watched = bell
            owner = bell_for(bell)
            self._mailbox.read_by_loop(bell, owner.standing(lambda: self._distribute(0.0)))

    def _convert(self, message: Any) -> Any:
        _, meta, body, buffers, _, _ = message
        value = load(body, buffers)
        if meta[:1] == _ERROR:
            from roost.errors import unpack_exception

            raise unpack_exception(value)
        return (int.from_bytes(meta[1:5], "little"), value) if self._ranked else value

    def close(self) -> None:
        """No more messages are taken; what is sent to the port is dropped."""
        self._mailbox.close(4, b"")

    def __del__(self) -> None:
        close: Callable[[], None] | None = getattr(self, "close", None)
        if close is not None and not self._ranked:
            try:
                close()
            except Exception:
                return

    def __reduce__(self) -> Any:
        raise TypeError("a PortReceiver stays in its process; send its Port instead")


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
        return Port(address, once=once), PortReceiver(mailbox, once=once)

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[Any], PortReceiver[tuple[int, Any]]]:
        """As :meth:`open`; what is received are pairs of the sender's rank and the value."""
        port, receiver = Channel.open(once)
        receiver._ranked = True
        return port, receiver
