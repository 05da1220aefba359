"""Receivers: the queue that a port leads to, read by threads and event loops alike.

One at a time reads the mailbox, and gives what it finds to those who asked first. A thread that waits reads
for all; when none does, the loop of somebody who awaits is rung. A thread that ends hands the reading on.
"""

from __future__ import annotations

import collections
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roost import _core
from roost.actor._future import Future, Source
from roost.actor._serialize import load

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

VALUE, ERROR = b"v", b"e"
_BATCH = 256
_LOOK_S = 0.05
"""How often a waiting actor looks for failures of what it owns."""


class Queue:
    """What the receivers of one port share: the mailbox, and who has asked for its messages."""

    def __init__(self, mailbox: Any, *, once: bool = False) -> None:
        self.mailbox = mailbox
        self._once = once
        self.changed = threading.Condition(threading.RLock())
        self._ready: collections.deque[Any] = collections.deque()
        self._asked: collections.deque[weakref.ref[_Receive]] = collections.deque()
        self._closed = False
        self._is_read = False
        self._waiters = 0
        self._watched: Any = None
        self._unwatch: Callable[[], None] = _nothing

    def ask(self, receive: _Receive) -> None:
        """The next message is for this one, after those who have asked before."""
        with self.changed:
            self._asked.append(weakref.ref(receive))
            self._hand_out()

    def put_back(self, message: Any) -> None:
        """A message was given to somebody who no longer wants it."""
        with self.changed:
            self._ready.appendleft(message)
            self._hand_out()

    def _hand_out(self) -> None:
        if self._once and self._ready and not self._closed:
            self._closed = True
            self.mailbox.close(4, b"")
        filled = False
        while self._asked and (self._ready or self._closed):
            receive = self._asked.popleft()()
            if receive is not None and receive.wants:
                receive.fill(self._ready.popleft() if self._ready else None)
                filled = True
        if filled and self._waiters:
            self.changed.notify_all()

    def look(self) -> None:
        """Takes what is there, without waiting."""
        with self.changed:
            if self._asked and not self._is_read and not self._closed:
                self._ready.extend(self.mailbox.take(_BATCH, 0.0))
                self._hand_out()

    def wait(self, receive: _Receive, timeout: float | None) -> None:
        """Returns when ``receive`` is settled, and not long after the timeout."""
        with self.changed:
            if receive.is_settled:
                return
            if self._is_read:
                self._waiters += 1
                self.changed.wait(timeout)
                self._waiters -= 1
                return
            self._is_read = True
            if self._watched is not None:
                self._unwatch()
                self._watched, self._unwatch = None, _nothing
        messages: list[Any] = []
        try:
            self.mailbox.read_by_thread()
            messages = self.mailbox.take(_BATCH, timeout)
        finally:
            with self.changed:
                self._is_read = False
                self._ready.extend(messages)
                self._hand_out()
                self.changed.notify()  # another thread may read now
                if not self._waiters:
                    self._ring_next()

    def _ring_next(self) -> None:
        for reference in self._asked:
            receive = reference()
            if receive is not None and receive.bells:
                self.watch(receive.bells[0][0])
                return

    def watch(self, bell: Any) -> None:
        """The loop of this bell reads, unless a thread does."""
        from roost.actor._bells import bell_for

        with self.changed:
            if self._is_read or self._closed or self._watched is bell:
                return
            self._unwatch()
            owner, mine = bell_for(bell), weakref.ref(self)

            def look() -> None:
                queue = mine()
                if queue is not None:
                    queue.look()

            token = owner.standing(look)
            self._watched, self._unwatch = bell, lambda: owner.drop(token)
            self.mailbox.read_by_loop(bell, token)

    def close(self) -> None:
        """Whoever waits gets what is there, or is told that nothing comes any more."""
        with self.changed:
            if not self._is_read:
                while messages := self.mailbox.take(_BATCH, 0.0):
                    self._ready.extend(messages)
            self._closed = True
            self._unwatch()
            self._hand_out()
        self.mailbox.close(4, b"")

    def __del__(self) -> None:
        try:
            self._unwatch()
            self.mailbox.close(4, b"")
        except Exception:
            return


def _nothing() -> None:
    return


class _Receive(Source):
    """The next message of a port that nobody else has asked for. Gives up its turn when nobody waits."""

    __slots__ = (
        "__weakref__",
        "_awaiters",
        "_convert",
        "_filled",
        "_lost_turn",
        "_message",
        "_queue",
        "_taken",
        "bells",
        "given_up",
    )

    def __init__(self, queue: Queue, convert: Callable[[Any], Any]) -> None:
        self._queue = queue
        self._convert = convert
        self._filled = self._taken = self.given_up = self._lost_turn = False
        self._awaiters = 0
        self._message: Any = None
        self.bells: list[tuple[Any, int]] = []

    @property
    def wants(self) -> bool:
        """Whether it still takes a message."""
        return not (self.given_up or self._lost_turn)

    @property
    def is_settled(self) -> bool:
        return self._filled or self.given_up

    def fill(self, message: Any) -> None:
        """Under the queue's lock: here it is; None when the channel is closed."""
        self._message, self._filled = message, True
        self._ring_all()

    def _ring_all(self) -> None:
        bells, self.bells = self.bells, []
        for bell, token in bells:
            bell.ring(token)

    def is_ready(self) -> bool:
        if not self._filled:
            self._ask_again()
            self._queue.look()
        return self._filled

    def _ask_again(self) -> None:
        if self._lost_turn and not self.given_up:
            self._lost_turn = False
            self._queue.ask(self)

    def abandon(self) -> None:
        with self._queue.changed:
            self._awaiters -= 1
            if not self._filled and self._awaiters == 0:
                self._lost_turn = True

    def wait(self, timeout: float | None, mailbox: Any) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        self._ask_again()
        while not self.is_settled:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return _core.TIMED_OUT
            if mailbox is not None:
                if mailbox.has_urgent:
                    return _core.URGENT
                left = _LOOK_S if left is None else min(left, _LOOK_S)
            self._queue.wait(self, left)
        return _core.READY

    def ring(self, bell: Any, token: int) -> None:
        with self._queue.changed:
            self._awaiters += 1
            self._ask_again()
            if not self.is_settled:
                self.bells.append((bell, token))
                self._queue.watch(bell)
                self._queue.look()
                return
        bell.ring(token)

    def cancel(self) -> bool:
        with self._queue.changed:
            if self._filled:
                return False
            self.given_up = True
            self._ring_all()
            self._queue.changed.notify_all()
        return True

    def result(self) -> Any:
        self._taken = True
        if self._message is None:
            raise EOFError("the channel was closed: no more messages come")
        return self._convert(self._message)

    def __del__(self) -> None:
        if self._filled and not self._taken and self._message is not None:
            self._queue.put_back(self._message)


class PortReceiver(Generic[T]):
    """The queue behind a port. Messages of one sender come in the order sent.

    When the last receiver of a port is gone, or one is closed, what is sent to the port is dropped.
    """

    def __init__(self, queue: Queue, *, once: bool = False, ranked: bool = False) -> None:
        self._queue = queue
        self._once = once
        self._ranked = ranked
        self._used = False

    def recv(self) -> Future[T]:
        """The next message, in the order of calls to ``recv``; an exception that was sent is raised.

        A future that is dropped, cancelled or given up by ``asyncio.wait_for`` leaves its message to the next
        one. After `close` it raises EOFError.

        Raises:
            ValueError: the channel is for one message, and one was asked for.
        """
        if self._once:
            if self._used:
                raise ValueError("this channel is for one message, and it was received")
            self._used = True
        receive = _Receive(self._queue, _ranked_value if self._ranked else _value)
        self._queue.ask(receive)
        return Future._of(receive)

    def ranked(self) -> PortReceiver[tuple[int, T]]:
        """The same queue, whose messages are pairs of the sender's rank and the value."""
        return PortReceiver(self._queue, once=self._once, ranked=True)

    def close(self) -> None:
        """Takes no more messages: what is sent to the port is dropped, and waits end in EOFError."""
        self._queue.close()

    def __reduce__(self) -> Any:
        raise TypeError("a PortReceiver stays in its process; send its Port instead")


def _value(message: Any) -> Any:
    _, meta, body, buffers, _, _ = message
    value = load(body, buffers)
    if meta[:1] == ERROR:
        from roost.errors import unpack_exception

        raise unpack_exception(value)
    return value


def _ranked_value(message: Any) -> Any:
    return int.from_bytes(message[1][1:5], "little"), _value(message)
