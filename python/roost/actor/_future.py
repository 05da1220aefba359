"""Futures: the results of calls, spawns, stops and receives."""

from __future__ import annotations

import math
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roost import _core
from roost.errors import DeadlockError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Sequence

T = TypeVar("T")

_READY, _TIMED_OUT, _URGENT = _core.READY, _core.TIMED_OUT, _core.URGENT


class Source:
    """Where a future's result comes from. ``wait`` returns one of the engine's three ends of a wait."""

    __slots__ = ()

    def wait(self, timeout: float | None, mailbox: Any) -> int:
        raise NotImplementedError

    def is_ready(self) -> bool:
        raise NotImplementedError

    def ring(self, bell: Any, token: int) -> None:
        raise NotImplementedError

    def result(self) -> Any:
        raise NotImplementedError

    def cancel(self) -> bool:
        return False

    def check(self, blocking: bool) -> None:
        """Raises DeadlockError when the calling code must not wait for this.

        Args:
            blocking: the wait blocks the thread, and the event loop that may run in it.
        """

    def abandon(self) -> None:
        """One of those who awaited it was cancelled."""

    def awaited(self) -> list[tuple[int, int, int]]:
        """The actors without whose answers this cannot be ready, by process and mailbox."""
        return []


class Promise(Source):
    """A source that Python code fulfils."""

    __slots__ = ("_bells", "_condition", "_error", "_is_set", "_value")

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._is_set = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._bells: list[tuple[Any, int]] = []

    def set(self, value: Any = None, error: BaseException | None = None) -> None:
        """Sets the result once; later calls change nothing."""
        with self._condition:
            if self._is_set:
                return
            self._value, self._error, self._is_set = value, error, True
            self._condition.notify_all()
            bells, self._bells = self._bells, []
        for bell, token in bells:
            bell.ring(token)

    def is_ready(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None, mailbox: Any) -> int:
        with self._condition:
            # In slices, so that an urgent message of the waiting actor is seen.
            left = timeout
            while not self._is_set:
                if mailbox is not None and mailbox.has_urgent:
                    return _URGENT
                step = 0.05 if left is None else min(left, 0.05)
                if left is not None and left <= 0:
                    return _TIMED_OUT
                self._condition.wait(step)
                if left is not None:
                    left -= step
        return _READY

    def ring(self, bell: Any, token: int) -> None:
        with self._condition:
            if not self._is_set:
                self._bells.append((bell, token))
                return
        bell.ring(token)

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


def check_timeout(timeout: float | None) -> float | None:
    """The timeout, if it is one.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative or not finite.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"a timeout is a number of seconds or None, not {timeout!r}")
    if not math.isfinite(timeout) or timeout < 0:
        raise ValueError(f"a timeout is a finite number of seconds, not negative: {timeout!r}")
    return float(timeout)


def running_loop() -> Any:
    """The event loop that runs in this thread, if one does."""
    events = sys.modules.get("asyncio.events")
    return None if events is None else events._get_running_loop()


class Future(Generic[T]):
    """The result of something that was already sent.

    ``get`` waits in ordinary code, ``await`` in any event loop; both as often and from as many places as
    you like. A wait that times out consumes nothing. An error that nobody ever looked at is logged once.
    """

    __slots__ = (
        "__weakref__",
        "_error",
        "_lock",
        "_rank",
        "_seen",
        "_source",
        "_state",
        "_value",
    )

    _source: Source
    _state: int
    _seen: bool
    _lock: threading.Lock | None
    _value: Any
    _error: BaseException
    _rank: Any

    def __init__(self) -> None:
        raise TypeError("futures come from calls; they cannot be made by hand")

    @classmethod
    def _of(cls, source: Source) -> Future[Any]:
        self: Future[Any] = object.__new__(cls)
        self._source = source
        self._state = 0
        self._seen = False
        self._lock = None
        self._rank = None
        return self

    @classmethod
    def _done(cls, value: Any = None, error: BaseException | None = None) -> Future[Any]:
        promise = Promise()
        promise.set(value, error)
        return cls._of(promise)

    def _own_lock(self) -> threading.Lock:
        with _settle_lock:
            if self._lock is None:
                self._lock = threading.Lock()
            return self._lock

    def _settle(self) -> None:
        """Takes the result from the source, once, also when several threads look at the same time."""
        with self._own_lock():
            if self._state:
                return
            try:
                self._value = self._source.result()
                self._state = 1
            except BaseException as error:
                self._error = error
                self._state = 2

    def _outcome(self) -> T:
        if self._state == 0:
            self._settle()
        self._seen = True
        if self._state == 2:
            raise self._error
        return self._value  # type: ignore[no-any-return]

    def get(self, timeout: float | None = None) -> T:
        """Waits for the result.

        Args:
            timeout: seconds; None waits as long as it takes.

        Returns:
            The result.

        Raises:
            TimeoutError: the time is over; the future can still be looked at later.
            ValueError: the timeout is negative or not finite.
            DeadlockError: the wait could never end.
            Exception: whatever went wrong.
        """
        if self._state:
            return self._outcome()
        timeout = check_timeout(timeout)
        source = self._source
        if not source.is_ready():
            source.check(blocking=True)
            if running_loop() is not None:
                _warn_blocking()
            self._wait(timeout)
        return self._outcome()

    def _wait(self, timeout: float | None) -> None:
        from roost.actor._context import current_runner

        runner = current_runner()
        if runner is None:
            if self._source.wait(timeout, None) == _TIMED_OUT:
                raise TimeoutError(f"no answer within {timeout} s; the future can still be awaited")
        elif timeout is None:
            self._wait_watched(runner)
        elif not self._wait_as(runner, timeout):
            raise TimeoutError(f"no answer within {timeout} s; the future can still be awaited")

    def _wait_as(self, runner: Any, timeout: float, stop: Sequence[DeadlockError] = ()) -> bool:
        """Waits in the thread of an actor, which handles failures meanwhile; false after the timeout."""
        import time

        deadline = time.monotonic() + timeout
        while True:
            end = self._source.wait(max(0.0, deadline - time.monotonic()), runner.mailbox)
            if end == _READY:
                return True
            if end == _TIMED_OUT:
                return False
            runner.handle_urgent()
            if stop:
                raise stop[0]

    def _wait_watched(self, runner: Any) -> None:
        """Waits in the thread of an actor as long as it takes, unless it would take forever."""
        from roost.actor._deadlock import AFTER_S, Wait

        if self._wait_as(runner, AFTER_S):
            return
        found: list[DeadlockError] = []

        def stop(error: DeadlockError) -> None:
            found.append(error)
            runner.nudge()

        wait = Wait(runner, self._source, stop)
        wait.start()
        try:
            while not self._wait_as(runner, 3600.0, found):
                continue
        except DeadlockError as error:
            self._give_up(error)
            raise
        finally:
            wait.end()

    result = get

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits, and returns the error instead of raising it; None when there was none."""
        try:
            self.get(timeout)
        except BaseException as error:
            if self._state == 2 and error is self._error:
                return error
            raise
        return None

    @property
    def rank(self) -> Any:
        """For the futures of a stream that are done: the point of the rank that has answered."""
        if self._state == 0 and self._source.is_ready():
            self._settle()
        return self._rank

    def done(self) -> bool:
        """Whether the result is there."""
        return bool(self._state) or self._source.is_ready()

    def cancel(self) -> bool:
        """Asks for the work not to be begun; true when no result will come any more.

        What already runs goes on, its answer is dropped. Waiters get ``CancelledError``.
        """
        if self.done():
            return False
        from asyncio import CancelledError

        # Under the lock, so that a waiter whom the source wakes finds the error.
        with self._own_lock():
            if self._state or not self._source.cancel():
                return False
            self._error, self._state, self._seen = CancelledError("the call was cancelled"), 2, True
        return True

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Calls ``callback(self)`` when the result is there, in a thread of roost's."""
        from roost.actor._bells import thread_bell

        thread_bell().when_ready(self._source, lambda: callback(self))

    def __await__(self) -> Generator[Any, None, T]:
        if not self._state and not self._source.is_ready():
            self._source.check(blocking=False)
            loop = running_loop()
            if loop is None:
                raise ValueError("a future is awaited inside an event loop; use get() elsewhere")
            yield from self._awaiting(loop)
        return self._outcome()

    def _awaiting(self, loop: asyncio.AbstractEventLoop) -> Generator[Any, None, None]:
        from roost.actor._bells import bell_of
        from roost.actor._context import current_runner

        waiter: asyncio.Future[None] = loop.create_future()
        bell = bell_of(loop)
        token = bell.when_ready(self._source, _waker(waiter))
        runner = current_runner()
        end: Callable[[], object] = _nothing
        if runner is not None and runner.is_busy():
            end = self._watch(runner, loop, waiter)
        try:
            yield from waiter.__await__()
        except DeadlockError as error:
            self._give_up(error)
            raise
        except BaseException:
            bell.drop(token)
            self._source.abandon()
            raise
        finally:
            end()

    def _watch(
        self, runner: Any, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]
    ) -> Callable[[], object]:
        """Looks for a cycle through this wait once it has lasted; returns how to end that."""
        from roost.actor._deadlock import AFTER_S, Wait

        def stop(error: DeadlockError) -> None:
            loop.call_soon_threadsafe(_fail, waiter, error)

        wait = Wait(runner, self._source, stop)
        timer = loop.call_later(AFTER_S, wait.start)

        def end() -> None:
            timer.cancel()
            wait.end()

        return end

    def _give_up(self, error: DeadlockError) -> None:
        with self._own_lock():
            self._error, self._state, self._seen = error, 2, True
            self._source.cancel()

    def as_asyncio(self) -> asyncio.Future[T]:
        """A fresh ``asyncio.Future`` of the running loop with the same result.

        Raises:
            RuntimeError: no loop runs in this thread.
        """
        loop = running_loop()
        if loop is None:
            raise RuntimeError("as_asyncio() needs a running event loop; use get() elsewhere")
        target: asyncio.Future[T] = loop.create_future()
        # A future that its user has dropped keeps neither itself nor its loop alive here.
        reference = weakref.ref(target)

        def copy() -> None:
            target = reference()
            if target is None or target.done():
                return
            try:
                target.set_result(self._outcome())
            except StopIteration as error:
                target.set_exception(RuntimeError(f"StopIteration: {error}"))
            except BaseException as error:
                target.set_exception(error)

        from roost.actor._bells import bell_of

        bell_of(loop).when_ready(self._source, copy)
        return target

    def __repr__(self) -> str:
        state = {0: "pending", 1: "done", 2: "failed"}[self._state]
        return f"<Future {state}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Future stays in its process; send its result, or a Port to answer to")

    def __del__(self) -> None:
        try:
            if not self._seen and self._source is not None:
                _report_unseen(self)
        except Exception:
            return


def _nothing() -> None:
    return


def _waker(waiter: asyncio.Future[None]) -> Callable[[], object]:
    reference = weakref.ref(waiter)

    def wake() -> None:
        waiter = reference()
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    return wake


def _fail(waiter: asyncio.Future[None], error: BaseException) -> None:
    if not waiter.done():
        waiter.set_exception(error)


_settle_lock = threading.Lock()


def _report_unseen(future: Future[Any]) -> None:
    """An error that nobody looked at is not lost: it is logged once."""
    if sys is None or sys.is_finalizing():
        return
    if future._state == 0:
        if not future._source.is_ready() or not getattr(future._source, "has_failed", lambda: False)():
            return
        future._settle()
    if future._state == 2 and not isinstance(future._error, DeadlockError):
        log_unseen(future._error)


def log_unseen(error: BaseException) -> None:
    """Says that nobody has looked at an error, so that it is not lost."""
    import logging

    logging.getLogger("roost").error("nobody looked at the result of a call: %s", error)


def _warn_blocking() -> None:
    warnings.warn(
        "get() blocks the running event loop until the answer is there; await the future instead",
        UserWarning,
        stacklevel=3,
    )
