"""Event loops that wait for the engine: one bell for each loop, and one thread for callbacks."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any

from roost import _core

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from roost.actor._future import Source


_bells: weakref.WeakValueDictionary[int, LoopBell] = weakref.WeakValueDictionary()


class LoopBell:
    """Runs callbacks in the thread that watches the bell's descriptor."""

    def __init__(self) -> None:
        self.bell = _core.Bell()
        self._tokens = itertools.count(1)
        self._waiting: dict[int, Callable[[], object]] = {}
        _bells[self.bell.fileno()] = self

    def when_ready(self, source: Source, callback: Callable[[], object]) -> int:
        """Calls ``callback`` in the loop's thread when ``source`` has its result.

        Returns:
            A token, to be dropped when the result is no longer wanted.
        """
        token = next(self._tokens)
        self._waiting[token] = callback
        source.ring(self.bell, token)
        return token

    def standing(self, callback: Callable[[], object]) -> int:
        """A token that may ring any number of times."""
        token = -next(self._tokens) & 0xFFFF_FFFF_FFFF_FFFF
        self._waiting[token] = callback
        return token

    def drop(self, token: int) -> None:
        """Nobody waits for this token any more."""
        self._waiting.pop(token, None)

    def forget(self) -> None:
        """Drops the callbacks, which hold what they would call."""
        self._waiting.clear()

    def answer(self) -> None:
        """Runs what has rung."""
        for token in self.bell.answer():
            callback = self._waiting.get(token) if token >> 63 else self._waiting.pop(token, None)
            if callback is not None:
                callback()


_loops: weakref.WeakKeyDictionary[Any, LoopBell] = weakref.WeakKeyDictionary()


def bell_of(loop: asyncio.AbstractEventLoop) -> LoopBell:
    """The bell of a running loop, made on first use."""
    known = _loops.get(loop)
    if known is None:
        known = _loops[loop] = LoopBell()
        loop.add_reader(known.bell.fileno(), known.answer)
    return known


def drop_bell(loop: asyncio.AbstractEventLoop) -> None:
    """The loop is about to be closed: nothing rings for it any more."""
    known = _loops.pop(loop, None)
    if known is not None:
        loop.remove_reader(known.bell.fileno())
        known.forget()


class _ThreadBell(LoopBell):
    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.Thread(target=self._run, name="roost-callbacks", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        import select

        poller = select.poll()
        poller.register(self.bell.fileno(), select.POLLIN)
        while True:
            poller.poll()
            try:
                self.answer()
            except Exception:
                import logging

                logging.getLogger("roost").exception("a done callback raised")


_thread_bell: _ThreadBell | None = None
_thread_lock = threading.Lock()


def thread_bell() -> LoopBell:
    """The bell whose callbacks run in a thread of their own."""
    global _thread_bell
    with _thread_lock:
        if _thread_bell is None:
            _thread_bell = _ThreadBell()
        return _thread_bell


def bell_for(bell: Any) -> LoopBell:
    """The owner of a bell of the engine."""
    return _bells[bell.fileno()]
